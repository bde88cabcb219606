"""Operators for which CUDA has its own implementation instead of the C++ composite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from gflow.ml.fit.cuda import attention, recurrent
from gflow.ml.fit.cuda.architectures import Architecture
from gflow.ml.fit.cuda.autocast import Autocast

aten = torch.ops.aten
FUSED_RMS_NORM = "aten::_fused_rms_norm"


@contextlib.contextmanager
def install(card: Architecture) -> Iterator[None]:
    """Register the replacement kernels until the context ends."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in _kernels(card).items():
        library.impl(name, kernel, "AutogradCUDA")
    if not torch._C._dispatch_has_kernel_for_dispatch_key(FUSED_RMS_NORM, "CUDA"):
        # Never called. Its presence makes autograd keep the operator whole, as in a CUDA build.
        library.impl(FUSED_RMS_NORM, aten._fused_rms_norm.default, "CUDA")
    autocast = Autocast()
    for name, kernel in autocast.kernels():
        library.impl(name, kernel, "AutocastCUDA", allow_override=True)
    clear = torch.clear_autocast_cache

    def clear_cache() -> None:
        autocast.forget()
        clear()

    torch.clear_autocast_cache = clear_cache
    try:
        yield
    finally:
        torch.clear_autocast_cache = clear
        library._destroy()


def dropout(x: Any, p: float, train: bool) -> Any:
    if not train or p == 0 or x.numel() == 0:
        return x
    if p == 1:
        return x.mul(torch.zeros((), dtype=x.dtype, device=x.device))
    return aten.native_dropout.default(x, p, train)[0]


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """ATen/native/Linear.cpp adds the bias in place to the product of an input that is not contiguous.

    For fake tensors it allocates the sum, as for any subclass of Tensor.
    """
    if bias is None or x.dim() < 3 or x.is_contiguous():
        return aten.linear.default.decompose(x, weight, bias)
    return aten.matmul.default(x, weight.t()).add_(bias)


def _softmax_of(operator: Any) -> Any:
    """CUDA converts fp16 to fp32 inside the kernel; the composite makes an fp32 copy first."""

    def softmax(x: Any, dim: int, dtype: Any = None) -> Any:
        if x.dtype == torch.float16 and dtype == torch.float32:
            return operator(x, dim, True)
        return operator(x if dtype is None else x.to(dtype), dim, False)

    return softmax


def _like(_: Any, x: Any) -> Any:
    """A single kernel with one result: the composite would allocate temporaries."""
    return torch.empty_like(x)


def _kernels(card: Architecture) -> dict[str, Callable[..., Any]]:
    return {
        "dropout": dropout,
        "linear": linear,
        "silu_backward": _like,
        "mish_backward": _like,
        "softmax.int": _softmax_of(aten._softmax.default),
        "log_softmax.int": _softmax_of(aten._log_softmax.default),
        "scaled_dot_product_attention": partial(attention.attend, card),
        "lstm.input": recurrent.layer("lstm"),
        "gru.input": recurrent.layer("gru"),
        "rnn_tanh.input": recurrent.layer("rnn_tanh"),
        "rnn_relu.input": recurrent.layer("rnn_relu"),
    }
