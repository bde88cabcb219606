"""Shortcuts that make a prediction fast do not change its result."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gflow.ml.fit.cuda.op_cache import OpCache  # noqa: E402
from gflow.ml.fit.estimate import record  # noqa: E402
from gflow.ml.fit.recipe import Recipe  # noqa: E402

LLAMA = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 256,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
VIT = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
       "intermediate_size": 128, "image_size": 32, "patch_size": 8}  # fmt: skip
T5 = {"model_type": "t5", "vocab_size": 1000, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
      "num_heads": 4, "decoder_start_token_id": 0, "pad_token_id": 0}  # fmt: skip


def _recurrent():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.out = torch.nn.LSTM(16, 32, 2, batch_first=True), torch.nn.Linear(32, 4)

        def forward(self, x):
            # Views of views, a result that is its argument, and two results of one operator.
            left, right = self.layer(x)[0].unfold(1, 2, 1)[:, 1:].chunk(2, dim=1)
            return self.out(torch.cat([left, right.contiguous()], 1).mean((1, 3)).max(0, keepdim=True)[0])

    return Net(), (torch.zeros(3, 9, 16), torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ({"hf": LLAMA}, {"batch": 2, "sequence": 64, "precision": "bf16", "clip": 1.0}),
        ({"hf": LLAMA}, {"batch": 1, "sequence": 1, "checkpointing": True, "accumulate": 2}),
        ({"hf": VIT}, {"batch": 3, "precision": "fp16", "optimizer": "Adafactor"}),
        ({"hf": T5}, {"batch": 2, "sequence": 32, "precision": "bf16-pure", "lora": 4}),
        ({"py": _recurrent}, {"optimizer": "SGD"}),
    ],
)
def test_remembered_results_leave_the_trace_as_it_is(model, settings, monkeypatch):
    quick = record(**model, recipe=Recipe(**settings))
    monkeypatch.setattr(OpCache, "key", lambda *_: None)
    slow = record(**model, recipe=Recipe(**settings))
    assert quick.moves == slow.moves
    assert [request.size for request in quick.requests] == [request.size for request in slow.requests]
    assert (quick.flops, quick.kernels) == (slow.flops, slow.kernels)


def test_a_prediction_loads_no_torchvision_and_the_compiler_only_on_request(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    found = _python(
        f"""
        import sys
        from gflow.cli.tools.fit import run
        run(["--hf", {str(tmp_path)!r}, "--json"])
        names = ("torch._dynamo.eval_frame", "torchvision.models")
        print([name for name in names if sys.modules.get(name)], type(sys.modules["torch._dynamo"]).__name__)

        import torch
        from gflow.ml.fit.models.lazy_torch import Compiler
        assert type(torch._dynamo) is Compiler
        assert "eager" in torch._dynamo.list_backends(exclude_tags=())
        print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
        """
    )
    assert found.splitlines()[-2:] == ["[] Compiler", "2.0"]


def _python(code):
    import textwrap

    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
