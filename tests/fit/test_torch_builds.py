"""What differs between builds and versions of PyTorch has the same prediction."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import flop_registry  # noqa: E402

from gflow.fit import Recipe  # noqa: E402
from gflow.ml.fit.estimate import record  # noqa: E402

GROUPED = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
}


def test_flop_counter_that_knows_no_grouped_heads_refuses_nothing(monkeypatch):
    """PyTorch 2.11 asserts that keys have as many heads as queries."""
    pytest.importorskip("transformers")
    kernel = torch.ops.aten._scaled_dot_product_cudnn_attention
    counts = []

    def of_2_11(query, key, value, *args, out_val=None, **kwargs):
        assert query[1] == key[1] == value[1], "sdpa_flop_count: query/key/value shapes are incompatible"
        counts.append((query, key, value))
        return 4 * query[0] * query[1] * query[2] * key[2] * query[3]

    recipe = Recipe(batch=2, sequence=64, precision="bf16")
    plain = record(hf=GROUPED, recipe=recipe)
    monkeypatch.setitem(flop_registry, kernel, of_2_11)
    assert record(hf=GROUPED, recipe=recipe).flops == plain.flops
    assert counts == [((2, 4, 64, 16),) * 3]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers, self.tags = nn.Embedding(50, 32), nn.LSTM(32, 64, 2), nn.Linear(64, 50)

    def forward(self, x):
        return self.tags(self.layers(self.words(x))[0]).float().mean()


def step(model, batch, optimizer) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_lstm_under_autocast_is_the_same_on_cuda_builds():
    """A CPU build has no kernel of autocast for cuDNN's recurrent layers; a CUDA build has one."""
    name = "aten::_cudnn_rnn"

    def sizes():
        def make(batch):
            return Tagger(), torch.zeros(16, batch, dtype=torch.long), step

        return [request.size for request in record(py=make, recipe=Recipe(batch=8)).requests]

    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA"):
        pytest.skip("this is a CUDA build; the CPU build is compared in its own run")
    expected = sizes()
    library = torch.library.Library("aten", "IMPL")
    library.impl("_cudnn_rnn", lambda *args, **kwargs: None, "AutocastCUDA")
    try:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
        assert sizes() == expected
    finally:
        library._destroy()
