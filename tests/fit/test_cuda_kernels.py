"""Kernels that a CUDA build of PyTorch chooses, by its source, on a build that has none of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gflow.ml.fit.cuda import recurrent  # noqa: E402
from gflow.ml.fit.cuda.architectures import ARCHITECTURES, HOPPER  # noqa: E402
from gflow.ml.fit.cuda.attention import _bias, choose  # noqa: E402
from gflow.ml.fit.estimate import record  # noqa: E402
from gflow.ml.fit.recipe import Recipe  # noqa: E402


def requests(model, batch, precision="fp32"):
    """Operator, phase and bytes of what the first step of a model requests."""
    trace = record(py=lambda: (model, batch), recipe=Recipe(precision=precision, steps=1))
    return [(one.operator, one.phase, one.size) for one in trace.requests]


class Normed(torch.nn.Module):
    def __init__(self, weight_type=None) -> None:
        super().__init__()
        self.weight, self.weight_type = torch.nn.Parameter(torch.ones(512)), weight_type

    def forward(self, x):
        weight = self.weight.to(self.weight_type or x.dtype)
        return torch.nn.functional.rms_norm(x * self.weight, (512,), weight).sum()


X = {"x": torch.empty(4, 64, 512)}


def test_no_other_operator_is_composed_on_a_cpu_build_alone():
    """A composite with a CUDA kernel of its own: autograd takes the composite where the kernel is missing."""
    listed = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
    entries = listed.read_text().split("- func: ")[1:]
    composite = [one for one in entries if re.search(r"^    .*CompositeImplicitAutograd: ", one, re.M)]
    names = {one.partition("(")[0] for one in composite if re.search(r"^    .*\bCUDA\b.*: ", one, re.M)}
    assert names == {"_fused_rms_norm", "mish_backward"}


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16-pure", 2)])
def test_rms_norm_is_one_kernel_that_keeps_one_number_per_row(precision, size):
    made = requests(Normed(), X, precision)
    norms = [(phase, bytes_) for operator, phase, bytes_ in made if "rms_norm" in operator]
    forward = [("forward", 4 * 64 * 512 * size), ("forward", 4 * 64 * 4)]
    assert norms == [*forward, ("backward", 4 * 64 * 512 * size), ("backward", 512 * size)]


def test_rms_norm_with_weights_of_another_type_is_composed():
    """ATen/native/layer_norm.cpp: the fused kernel needs input and weight of one type."""
    assert not any("rms_norm" in operator for operator, _, _ in requests(Normed(torch.bfloat16), X))


@pytest.mark.parametrize(
    ("heads", "is_grouped", "dtype", "kernel"),
    [
        (4, False, torch.bfloat16, "cudnn"),
        (1, True, torch.bfloat16, "cudnn"),
        (1, False, torch.bfloat16, "math"),
        (4, False, torch.float32, "efficient"),
        (1, True, torch.float32, "math"),
        (1, False, torch.float32, "math"),
    ],
)
def test_attention_kernel_by_heads_and_type(heads, is_grouped, dtype, kernel):
    """No fused kernel broadcasts one key head over all query heads (Falcon)."""
    query, key = torch.empty(2, 4, 8, 64, dtype=dtype), torch.empty(2, heads, 8, 64, dtype=dtype)
    assert choose(query, key, key, None, is_grouped=is_grouped, card=HOPPER) == kernel


QUERY = torch.empty(2, 4, 40, 64, dtype=torch.bfloat16)


def bias(*shape, learned=False, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype, requires_grad=learned)


@pytest.mark.parametrize(
    ("mask", "kernel"),
    [
        (bias(1, 4, 40, 40), "cudnn"),
        (bias(40, 40), "cudnn"),
        (bias(2, 1, 1, 40), "cudnn"),
        (bias(4, 40, 40), "efficient"),
        (bias(1, 4, 40, 40, learned=True), "efficient"),
        (bias(1, 40, 40, 4, learned=True).permute(0, 3, 1, 2), "math"),
        (bias(1, 40, 40, 4).permute(0, 3, 1, 2), "math"),
    ],
)
def test_attention_kernel_by_mask(mask, kernel):
    """Rules of check_attn_mask_shape and check_last_dim_stride_equals_1_dense (sdp_utils_cpp.h)."""
    assert choose(QUERY, QUERY, QUERY, mask, is_grouped=False, card=HOPPER) == kernel


@pytest.mark.parametrize(
    ("widths", "card", "kernel"),
    [
        ((256, 256), "hopper", "cudnn"),
        ((256, 256), "blackwell", "flash"),
        ((192, 128), "blackwell", "cudnn"),
        ((192, 128), "ampere", "efficient"),
        ((320, 320), "hopper", "efficient"),
        ((60, 60), "hopper", "flash"),
    ],
)
def test_attention_kernel_by_width_of_a_head(widths, card, kernel):
    query, value = (torch.empty(2, 4, 40, width, dtype=torch.bfloat16) for width in widths)
    assert choose(query, query, value, None, is_grouped=False, card=ARCHITECTURES[card]) == kernel


def test_attention_kernel_of_a_single_key_or_of_strided_heads():
    key = QUERY[:, :, :1]
    assert choose(QUERY, key, key, None, is_grouped=False, card=HOPPER) == "flash"
    assert choose(key, QUERY, QUERY, None, is_grouped=False, card=HOPPER, dropout=0.1) == "flash"
    strided = torch.empty(2, 4, 64, 40, dtype=torch.bfloat16).transpose(2, 3)
    assert choose(QUERY, strided, QUERY, None, is_grouped=False, card=HOPPER) == "math"


class Dropped(torch.nn.Module):
    def __init__(self, dropout) -> None:
        super().__init__()
        self.scale, self.dropout = torch.nn.Parameter(torch.ones(())), dropout

    def forward(self, x):
        x = x * self.scale
        return torch.nn.functional.scaled_dot_product_attention(
            x[:, :, :1], x, x, dropout_p=self.dropout
        ).sum()


@pytest.mark.parametrize(("dropout", "kernel"), [(0.0, "cudnn"), (0.1, "flash")])
def test_dropout_of_attention_decides_its_kernel(dropout, kernel):
    """cuDNN's kernel has no dropout for a single query (sdp_utils.cpp, check_cudnn_dropout)."""
    made = requests(Dropped(dropout), {"x": torch.empty(2, 4, 40, 64)}, "bf16-pure")
    names = {operator for operator, _, _ in made if "scaled_dot_product" in operator}
    assert names and all(kernel in name for name in names)


@pytest.mark.parametrize(("kernel", "queries", "keys", "row"), [
    ("efficient", 40, 41, 48), ("efficient", 7, 48, 48), ("efficient", 48, 7, 8), ("cudnn", 40, 41, 41),
])  # fmt: skip
def test_rows_of_a_mask_are_padded_by_the_number_of_keys(kernel, queries, keys, row):
    """Of the keys, not of the queries, and for the memory-efficient kernel alone."""
    query = torch.empty(2, 4, queries, 64, dtype=torch.bfloat16)
    found = _bias(torch.ones(queries, keys, dtype=torch.bool), query, kernel)
    assert (found.shape, found.dtype) == ((2, 4, queries, keys), torch.bfloat16)
    assert found.untyped_storage().nbytes() == 2 * queries * row


class Biased(torch.nn.Module):
    """Attention with a learned bias of each head, as in BEiT and Swin."""

    def __init__(self, length) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(1, 4, length, length))

    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=self.bias).sum()


def test_learned_bias_is_padded_and_has_a_gradient_for_each_sequence():
    """Rows are padded to eight numbers; the gradient's rows to sixteen, before it is summed."""
    made = requests(Biased(41), {"x": torch.empty(2, 4, 41, 64)})
    assert ("aten.constant_pad_nd.default", "forward", 4 * 41 * 48 * 4) in made
    name = "aten._scaled_dot_product_efficient_attention_backward.default"
    assert (name, "backward", 2 * 4 * 41 * 48 * 4) in made
    # 44 numbers are 16 bytes each, but not eight numbers.
    made = requests(Biased(44), {"x": torch.empty(2, 4, 44, 64)})
    assert ("aten.constant_pad_nd.default", "forward", 4 * 44 * 48 * 4) in made


class Transposed(torch.nn.Module):
    """Words through a layer whose input is not contiguous, as after recurrent layers with the batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(100, 256), torch.nn.Linear(256, 512)

    def forward(self, x):
        return self.head(self.words(x).transpose(0, 1)).sum()


def test_bias_of_a_layer_with_strided_input_is_added_in_place():
    made = requests(Transposed(), {"x": torch.zeros(64, 128, dtype=torch.long)})
    results = [operator for operator, phase, size in made if (phase, size) == ("forward", 64 * 128 * 512 * 4)]
    assert results == ["aten.mm.default"]


class Columns(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = torch.nn.Parameter(torch.ones(())), torch.nn.Linear(256, 512)

    def forward(self, x):
        return self.head((x * self.scale).t()).sum()


def test_bias_of_a_layer_with_a_strided_matrix_is_added_by_the_product():
    """ATen/native/Linear.cpp: in two dimensions addmm takes any strides."""
    made = requests(Columns(), {"x": torch.empty(256, 1024)})
    results = [operator for operator, phase, size in made if (phase, size) == ("forward", 1024 * 512 * 4)]
    assert results == ["aten.addmm.default"]


def test_embedding_copies_a_strided_gradient():
    """ATen/native/cuda/Embedding.cu: the copy comes before the gradient of the words."""
    made = requests(Transposed(), {"x": torch.zeros(64, 128, dtype=torch.long)})
    sizes = [size for operator, _, size in made if "embedding_dense_backward" in operator]
    assert sizes[:2] == [64 * 128 * 256 * 4, 100 * 256 * 4]


LAYERS = Path(__file__).parents[2] / "benchmarks/fit_layers_measured.jsonl"


def recurrent_layers():
    """Each measured layer: its shape, and the bytes of its workspace and of what cuDNN keeps."""
    kinds = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}
    for row in map(json.loads, LAYERS.read_text().splitlines()):
        if "rnn" in row:
            case, sizes = row["rnn"], row["forward"]
            # What is kept is requested while the workspace is in use, which is released next.
            triples = zip(sizes, sizes[1:], sizes[2:], strict=False)
            found = next(
                (workspace, kept)
                for workspace, kept, freed in triples
                if min(workspace, kept) > 0 and freed == -workspace
            )
            yield recurrent.Shape(
                recurrent.MODES[kinds[case["kind"]]], case["batch"], case["length"], case["width"],
                case["hidden"], case["projection"], case["layers"], 2 if case["both"] else 1,
                bool(case["dropout"]), 4 if case["dtype"] == "float32" and not case["autocast"] else 2,
            ), found  # fmt: skip


def test_kept_by_recurrent_layer_equals_what_was_measured():
    layers = list(recurrent_layers())
    wrong = [(shape, kept) for shape, (_, kept) in layers if recurrent.kept_bytes(shape) != kept]
    assert len(layers) > 200 and not wrong


def test_workspace_of_recurrent_layer_is_near_what_was_measured():
    errors = [abs(recurrent.workspace(shape) / measured - 1) for shape, (measured, _) in recurrent_layers()]
    assert sum(error < 0.001 for error in errors) >= 230
