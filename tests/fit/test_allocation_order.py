"""Results and workspaces are requested in the order of PyTorch's source, as measured on an H200."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from gflow.ml.fit.cuda import recurrent  # noqa: E402
from gflow.ml.fit.estimate import record  # noqa: E402
from gflow.ml.fit.recipe import Recipe  # noqa: E402

MIB = 1 << 20


def moves(make, operators, phase, precision="fp32", least=MIB):
    """Sizes in MiB that these operators request (+) and release (-) in a phase of the first step."""
    trace = record(py=make, recipe=Recipe(batch=1, precision=precision, steps=1))
    found = []
    for move in trace.moves:
        request = trace.requests[max(move, -1 - move)]
        if any(name in request.operator for name in operators) and request.phase == phase:
            if request.size >= least and (request.kind == "workspace" or move >= 0):
                found.append(request.size / MIB * (1 if move >= 0 else -1))
    return found


class Tagger(nn.Module):
    """Sizes as in the measured GRU and LSTM: four layers of 1024, with dropout."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.layers = kind(512, 1024, 4, batch_first=True, dropout=0.1)

    def forward(self, x):
        return self.layers(x)[0].float().mean()


def tagger(kind, size, length):
    def make():
        model = Tagger(kind)
        return model, {"x": torch.empty(size, length, 512, requires_grad=True)}

    return make


def test_recurrent_layer_asks_for_its_workspace_before_it_keeps():
    found = moves(tagger(nn.GRU, 32, 128), ["_cudnn_rnn.default"], "forward")
    assert found == pytest.approx([6.1875, 8, 16, 212.5, 433.5, -212.5, -8], rel=1e-5)


def test_recurrent_backward_computes_input_and_then_weights():
    """The input and the gradient are copied, because their first dimension is the batch."""
    found = moves(tagger(nn.GRU, 32, 128), ["_cudnn_rnn_backward"], "backward")
    weights = sum(one.numel() for one in nn.GRU(512, 1024, 4).parameters()) * 4 / MIB
    first = [8, 16, 8, 212.5, -212.5, -16, -8]
    assert found == pytest.approx([*first, 8, weights, 212.5, -212.5, -8], rel=1e-5)


def test_recurrent_layer_with_projection_keeps_what_it_projects():
    """Of each layer five values and the projected one of each cell, and the result; between them one more."""

    def make():
        model = Tagger(nn.LSTM)
        model.layers = nn.LSTM(512, 1024, 2, batch_first=True, proj_size=256)
        return model, {"x": torch.empty(32, 128, 512)}

    found = moves(make, ["_cudnn_rnn.default"], "forward")
    assert found[1] == 32 * 128 * 256 * 4 / MIB
    assert found[3] == (32 * 128 * (2 * (6 * 1024 + 256) + 1024) * 4 + recurrent.HEADER) / MIB


def test_recurrent_backward_without_gradient_of_the_output():
    """A classifier that uses the last state alone: the missing gradient is filled with zeros, and copied."""

    class Last(Tagger):
        def forward(self, x):
            return self.layers(x)[1].float().mean()

    found = moves(lambda: (Last(nn.GRU), {"x": torch.empty(32, 128, 512)}), ["_backward"], "backward")
    assert found[:5] == pytest.approx([16, 8, 16, 8, 212.5], rel=1e-5)


def test_recurrent_layer_under_autocast_computes_in_one_block_of_fp16():
    """Also where autocast is bf16: the next layer converts its input."""
    trace = record(py=tagger(nn.LSTM, 64, 256), recipe=Recipe(batch=1, precision="bf16", steps=1))
    sizes = [request.size / MIB for request in trace.requests if "_cudnn_rnn.default" in request.operator]
    assert [size for size in sizes if size > 300] == pytest.approx([305, 742], rel=1e-5)
    flat = [
        request.size / MIB for request in trace.requests if request.operator == "aten.empty.memory_format"
    ]
    assert flat.count(60.0625) == 1
    seen = []

    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.head = nn.LSTM(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            out = self.layers(x)[0]
            seen.append((out.dtype, self.head(out).dtype))
            return out.float().mean()

    record(py=lambda: (Next(), {"x": torch.empty(4, 2, 8)}), recipe=Recipe(precision="bf16", steps=1))
    assert seen == [(torch.float16, torch.bfloat16)]


def test_convolution_releases_a_workspace_before_the_next_result():
    """The gradient of the input, and then that of the weight; the first layer's input has none."""

    def make():
        model = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2)))
        return model, (torch.empty(4, 16, 256, 256), torch.empty(4, 16, 256, 256))

    found = moves(make, ["convolution_backward"], "backward", least=512)
    weight = 16 * 16 * 9 * 4 / MIB
    first, second = 32 + weight, 32 + 15 * weight
    expected = [16, first, -first, weight, second, -second, weight, second, -second]
    assert found == pytest.approx(expected)


def test_convolution_in_one_dimension_has_the_workspace_of_two():
    class Waves(nn.Module):
        def __init__(self, dimensions: int) -> None:
            super().__init__()
            self.dimensions = dimensions
            self.weight = nn.Parameter(torch.empty(32, 32, *[1] * (dimensions - 1), 3))

        def forward(self, x):
            convolve = functional.conv1d if self.dimensions == 1 else functional.conv2d
            return convolve(x, self.weight).mean()

    one, two = (
        moves(
            lambda n=n: (Waves(n), {"x": torch.empty(8, 32, *[1] * (n - 1), 5000)}),
            ["convolution"],
            "forward",
        )
        for n in (1, 2)
    )
    assert len(one) == 3 and one == two


class Pictures(nn.Module):
    """A convolution whose weights have channels last, and whose input may have them first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.second.to(memory_format=torch.channels_last)

    def forward(self, x):
        out = self.second(self.first(x))
        assert out.is_contiguous(memory_format=torch.channels_last)
        return functional.log_softmax(out, 1).mean()


def test_convolution_with_channels_last_copies_what_has_them_first():
    """The output of the first layer, before the second's result; its gradient comes as cuDNN needs it."""

    def make():
        return Pictures(), {"x": torch.empty(4, 16, 256, 256)}

    weight = 16 * 16 * 9 * 4 / MIB
    found = moves(make, ["convolution.default"], "forward", least=512)
    assert found == pytest.approx([16, 32 + weight, -32 - weight, 16, 16, -16])
    found = moves(make, ["convolution_backward"], "backward", least=512)
    # A copy of the input and one of the gradient of log_softmax, which has channels first.
    assert found[:6] == pytest.approx([16, 16, 16, weight, -16, -16])


def test_convolution_copies_weights_in_another_layout_for_its_result_and_the_gradient_of_the_input():
    class Mixed(Pictures):
        def forward(self, x):
            return self.first(self.second(x)).mean()

    def make():
        return Mixed(), {"x": torch.empty(4, 16, 256, 256)}

    weight = 16 * 16 * 9 * 4 / MIB
    # The input of the layer with channels last is copied; so are the weights of the next one.
    found = moves(make, ["convolution.default"], "forward", least=512)
    assert found == pytest.approx([16, 16, -16, 16, weight, -weight])
    found = moves(make, ["convolution_backward"], "backward", least=512)
    assert found[:6] == pytest.approx([16, 16, weight, -weight, weight, -16])


def test_softmax_copies_input_that_is_not_contiguous():
    def make():
        return Pictures(), {"x": torch.empty(4, 16, 256, 256)}

    assert moves(make, ["_log_softmax.default"], "forward", least=512) == [16, 16, -16]
    assert moves(make, ["_log_softmax_backward"], "backward", least=512) == [16]


def test_autocast_converts_the_last_argument_first():
    """Bias, weight, input; the backward pass converts their gradients in the reverse order."""
    weight, bias = 2 * 1024 * 2048 / MIB, 2 * 2048 / MIB

    def make():
        model = nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 2048))
        return model, (torch.empty(4096, 1024), torch.empty(4096, 2048))

    found = moves(make, ["_to_copy"], "forward", precision="bf16", least=4096)
    assert found[-4:-1] == [bias, weight, 8]  # and the result, for the loss
    found = moves(make, ["_to_copy"], "backward", precision="bf16", least=4096)
    assert found[-3:] == [16, 2 * weight, 2 * bias]


def test_dropout_asks_for_its_mask_first():
    found = moves(
        lambda: (nn.Sequential(nn.Linear(512, 512), nn.Dropout()), (torch.empty(4096, 512),) * 2),
        ["native_dropout"],
        "forward",
    )
    assert found == [2, 8]


def test_workspaces_are_released_in_the_reverse_order():
    found = moves(
        lambda: (nn.Linear(1024, 1024), (torch.empty(8192, 1024),) * 2),
        ["sum.dim_IntList"],
        "backward",
        least=1,
    )
    # The bias of the layer, the parts of its sum, and a semaphore for each block of columns.
    assert found == [4096 / MIB, 64, 32 / MIB, -32 / MIB, -64]


@pytest.mark.parametrize("is_tied", [False, True])
def test_weights_with_channels_last_replace_the_originals_one_by_one(is_tied):
    def make():
        model = nn.Sequential(*(nn.Conv2d(64, 64, 9, padding=4, bias=False) for _ in range(3)))
        if is_tied:
            model[2].weight = model[0].weight
        return model, (torch.empty(1, 64, 8, 8), torch.empty(1, 64, 8, 8))

    trace = record(py=make, recipe=Recipe(batch=1, steps=1, channels_last=True))
    of_model = trace.moves[: next(index for index, phase, _ in trace.marks if phase == "forward")]
    weights = [move for move in of_model if trace.requests[max(move, -1 - move)].size == 64 * 64 * 81 * 4]
    # The originals and then the copies; negative: the release of a request, counted from -1.
    assert weights == ([0, 1, 2, 3, -2, -1] if is_tied else [0, 1, 2, 3, -1, 4, -2, 5, -3])


@pytest.mark.parametrize(("kernel", "expected"), [(7, [98]), (3, [])])
def test_first_layer_with_channels_last_is_padded(kernel, expected):
    """Three channels in 16 bit become eight: the input takes 98 instead of 36.75 MiB."""

    def make():
        model = nn.Sequential(nn.Conv2d(3, 64, kernel, 2, kernel // 2, bias=False))
        return model, (torch.empty(128, 3, 224, 224), torch.empty(128, 64, 112, 112))

    trace = record(py=make, recipe=Recipe(batch=1, steps=1, precision="bf16", channels_last=True))
    sizes = [
        request.size / MIB
        for request in trace.requests
        if request.operator == "aten.convolution.default" and request.kind == "workspace"
    ]
    assert sizes == pytest.approx(expected, rel=1e-2)
