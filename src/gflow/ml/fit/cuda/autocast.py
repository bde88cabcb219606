"""CUDA's automatic mixed precision for fake CUDA tensors, which the C++ side takes for `meta` tensors.

The operators that autocast covers are read from the installed PyTorch. Four lists, as in
ATen/autocast_mode.h, decide how each is cast. An operator on none of them is computed in single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

KEY = torch._C.DispatchKey.AutocastCUDA
# Computed in 16 bit.
LOWER = {
    "_convolution", "_convolution.deprecated", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding",
    "conv3d", "conv3d.padding", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "prelu", "addmm", "addmv", "addr",
    "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul",
    "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell",
    "rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
}  # fmt: skip
# Result in single precision, unless the caller passes a dtype.
WIDE_RESULT = {
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
}  # fmt: skip
# Computed in the widest type among the arguments.
WIDEST = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add",
}  # fmt: skip
# Operators with special rules: not replaced.
LEFT = {"norm.Scalar", "norm.ScalarOpt_dim", "norm.names_ScalarOpt_dim", "binary_cross_entropy"}


class Autocast:
    """The autocast kernels, and the cache of cast weights that lives until autocast ends."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[Any, Any]] = {}
        self._below = torch._C.DispatchKeySet(KEY)

    def kernels(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield each operator that autocast covers, with its replacement kernel."""
        for qualified in torch._C._dispatch_get_all_op_names():
            if not qualified.startswith("aten::"):
                continue
            name = qualified.removeprefix("aten::")
            if name in LEFT or not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "AutocastCUDA"):
                continue
            if any(word in name for word in ("Dimname", "names")):
                continue
            yield name, self._kernel(name)

    def forget(self) -> None:
        self._casts.clear()

    def _kernel(self, name: str) -> Callable[..., Any]:
        base, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, base), overload or "default")

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if name in WIDE_RESULT:
                if kwargs.get("dtype") is None and _is_narrow(args[0]) and not _names_type(operator, args):
                    kwargs["dtype"] = torch.float32
            else:
                wanted = self._wanted(name, (args, kwargs))
                if wanted is not None:
                    kwargs = self._cast_last_first(kwargs, wanted)
                    args = tuple(self._cast_last_first(dict(enumerate(args)), wanted).values())
            with torch._C._ExcludeDispatchKeyGuard(self._below):
                return operator(*args, **kwargs)

        return kernel

    @staticmethod
    def _wanted(name: str, values: Any) -> torch.dtype | None:
        if name in LOWER:
            return torch.get_autocast_dtype("cuda")
        if name in WIDEST:
            kinds = {tensor.dtype for tensor in _tensors(values)}
            return torch.float32 if torch.float32 in kinds else None
        return torch.float32

    def _cast_last_first(self, arguments: dict[Any, Any], wanted: torch.dtype) -> dict[Any, Any]:
        """Cast arguments from the last to the first: bias, weight, input.

        In C++ the casts are arguments of one call, which GCC evaluates in this order. It also decides the
        order of the backward pass, which takes the last cast first.
        """
        cast = {name: self._cast(value, wanted) for name, value in reversed(arguments.items())}
        return {name: cast[name] for name in arguments}

    def _cast(self, value: Any, wanted: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._one(value, wanted)
        if isinstance(value, tuple | list):
            return type(value)(self._cast(item, wanted) for item in value)
        if isinstance(value, dict):
            return {key: self._cast(item, wanted) for key, item in value.items()}
        return value

    def _one(self, tensor: Any, wanted: torch.dtype) -> Any:
        if not _is_eligible(tensor) or tensor.dtype == wanted:
            return tensor
        # As in cached_cast: a weight is cast once per autocast region.
        is_weight = (
            tensor.dtype == torch.float32
            and wanted == torch.get_autocast_dtype("cuda")
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not is_weight:
            return tensor.to(wanted)
        if id(tensor) not in self._casts:
            self._casts[id(tensor)] = (tensor, tensor.to(wanted))
        return self._casts[id(tensor)][1]


def _names_type(operator: Any, args: Any) -> bool:
    """Whether a dtype is among the positional arguments."""
    return any(isinstance(arg, torch.dtype) for arg in args)


def _tensors(values: Any) -> Iterator[Any]:
    if isinstance(values, torch.Tensor):
        if _is_eligible(values):
            yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


def _is_eligible(tensor: Any) -> bool:
    return bool(tensor.device.type == "cuda" and tensor.is_floating_point() and tensor.dtype != torch.float64)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _is_eligible(value) and value.dtype != torch.float32
