"""A fake CUDA device: tensors with shapes, types and lifetimes, without memory and without a GPU.

PyTorch's fake tensors already know the shape of every result. Two things are added here.

* The tensors carry CUDA's dispatch keys, so that autocast uses CUDA's lists and `tensor.device` is `cuda`.
  The C++ side takes them for `meta` tensors: otherwise its autograd engine would look for CUDA streams.
* Operators for which CUDA has its own implementation instead of the C++ composite are replaced (`kernels`).

All global changes are undone at the end; one run per process is recommended nevertheless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gflow.errors import Refused
from gflow.ml.fit.cuda import convolution, foreach, recurrent
from gflow.ml.fit.cuda.allocation_trace import AllocationTrace
from gflow.ml.fit.cuda.architectures import HOPPER, Architecture
from gflow.ml.fit.cuda.op_cache import OpCache
from gflow.ml.fit.cuda.patching import patch
from gflow.ml.fit.cuda.storage_tracker import StorageTracker

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


class DataDependent(Refused):
    """The model reads values of tensors, and shapes may depend on them."""

    code = "data_dependent"


class FakeCudaMode(FakeTensorMode):  # type: ignore[misc]
    """Runs every operator on shapes only, and reports the outermost ones to `tracker`."""

    def __init__(self, tracker: StorageTracker) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.tracker = tracker
        self._depth = 0
        self._op_cache = OpCache(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and device.type == "meta":
            # A composite operator read the device of its argument.
            kwargs = {**kwargs, "device": CUDA}
        if self._depth:
            return self._run(func, types, args, kwargs)
        if func in READS:
            return _read(args[0], self.tracker.trace.module)
        self._depth += 1
        try:
            return self.tracker.run(func, args, kwargs, lambda: self._run(func, types, args, kwargs))
        except Exception as error:
            if self.tracker.trace.module:
                error.add_note(self.tracker.trace.module)  # for the error message
            raise
        finally:
            self._depth -= 1

    def _run(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        own = OWN.get(func)
        if own is not None:
            return own(self, func, args, kwargs)
        if func._schema.name.startswith("aten::_foreach_"):
            out = foreach.run(self, func, args)
            if out is not NotImplemented:
                return out
        key = self._op_cache.key(func, args, kwargs)
        if key is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        out = self._op_cache.look_up(key, args)
        if out is NotImplemented:
            out = super().__torch_dispatch__(func, types, args, kwargs)
            self._op_cache.store(key, args, out)
        return out


def _read(tensor: Any, module: str) -> Any:
    """Return the assumed value of a tensor, where no shape depends on it."""
    constant = getattr(tensor, "constant", None)
    if constant is not None:
        return constant.item()
    if tensor.dtype == torch.bool:
        return getattr(tensor, "_gflow_value", False)
    if tensor.dtype.is_floating_point:
        return getattr(tensor, "_gflow_value", 1.0)
    raise DataDependent(
        f"{module or 'the model'} reads an integer from a tensor, and shapes may depend on it",
        hint="find its .item() or .tolist() and use fixed shapes, or measure one step on a GPU",
    )


READS = {aten._local_scalar_dense.default}


def _reads_as(value: Any) -> Callable[..., Any]:
    """Return a kernel that runs the operator; its result reads as `value`.

    `mask.all()` is assumed to be true and `.any()` false, as for unpadded data.
    """

    def run(mode: FakeCudaMode, func: Any, args: Any, kwargs: Any) -> Any:
        out = FakeTensorMode.__torch_dispatch__(mode, func, (), args, kwargs)
        out._gflow_value = value
        return out

    return run


def _count(mode: FakeCudaMode, func: Any, args: Any, kwargs: Any) -> Any:
    """`mask.sum()`: models use `mask.sum() == mask.numel()` for `mask.all()`. See `_equal` below."""
    out = FakeTensorMode.__torch_dispatch__(mode, func, (), args, kwargs)
    if args[0].dtype == torch.bool:
        out._gflow_count = args[0].numel()
    return out


def _equal(mode: FakeCudaMode, func: Any, args: Any, kwargs: Any) -> Any:
    out = FakeTensorMode.__torch_dispatch__(mode, func, (), args, kwargs)
    if getattr(args[0], "_gflow_count", None) == args[1]:
        out._gflow_value = True
    return out


def _unscale(mode: FakeCudaMode, func: Any, args: Any, kwargs: Any) -> None:
    """GradScaler's check: assume that no gradient overflowed, so that the optimizer steps."""
    args[1]._gflow_value = 0.0


def _grouped_product(mode: FakeCudaMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Grouped matrix product (mixture of experts), for any dtype: only the shape is computed."""
    left, right = args[:2]
    if left.dim() == 2 and right.dim() == 2:
        groups = (args[2] if len(args) > 2 else kwargs["offs"]).shape[0]
        return left.new_empty((groups, left.shape[0], right.shape[1]))
    rows = left.shape[0] if left.dim() == 2 else left.shape[1]
    return left.new_empty((rows, right.shape[-1]))


OWN: dict[Any, Callable[..., Any]] = {
    aten.all.default: _reads_as(True),
    aten.any.default: _reads_as(False),
    aten.sum.default: _count,
    aten.eq.Scalar: _equal,
    aten._cudnn_rnn.default: recurrent.forward,
    aten._cudnn_rnn_backward.default: recurrent.backward,
    aten._grouped_mm.default: _grouped_product,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
}


@contextlib.contextmanager
def device(trace: AllocationTrace, card: Architecture = HOPPER) -> Iterator[FakeCudaMode]:
    """Activate the fake CUDA device. Allocations on it are recorded in `trace`."""
    from gflow.ml.fit.cuda import kernels

    mode = FakeCudaMode(StorageTracker(trace, card))
    with contextlib.ExitStack() as stack:
        for owner, name, value in _patches(card):
            stack.enter_context(patch(owner, name, value))
        for kinds in _foreach_kinds():
            kinds.append(FakeTensor)
            stack.callback(kinds.remove, FakeTensor)
        stack.enter_context(kernels.install(card))
        stack.enter_context(mode)
        yield mode


def _patches(card: Architecture) -> list[tuple[Any, str, Any]]:
    make = torch.Tensor._make_subclass

    def make_subclass(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is FakeTensor and kwargs["device_for_backend_keys"].type == "cuda":
            kwargs["dispatch_device"] = False
        return make(cls, *args, **kwargs)

    return [
        (torch.Tensor, "_make_subclass", staticmethod(make_subclass)),
        (torch.Tensor, "to", _to(torch.Tensor.to)),
        (torch.Tensor, "cuda", lambda self, *_, **__: self.to(CUDA)),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "get_device_capability", lambda *_: card.capability),
        (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        *_of_transformers(),
        (torch.random, "fork_rng", _no_rng),
        (torch, "get_rng_state", lambda: None),
        (torch, "set_rng_state", lambda _: None),
        # Asked by PyTorch's fake convolution, which knows cuDNN's rule in a CUDA build with a GPU alone.
        (torch._C, "_conv_determine_backend_memory_format", convolution.memory_format),
    ]


def _to(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.to` for fake CUDA tensors: the C++ side takes them for `meta` tensors."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        if args and isinstance(args[0], str | torch.device | int) and not isinstance(args[0], bool):
            kwargs["device"], args = args[0], args[1:]
        if args and isinstance(args[0], torch.dtype):
            kwargs["dtype"], args = args[0], args[1:]
        device = kwargs.pop("device", None)
        if device is not None:
            device = CUDA if isinstance(device, int) else torch.device(device)
            device = CUDA if device.type == "cuda" else device
            if device != self.device or kwargs.get("copy"):
                kwargs["device"] = device
        if not args and not kwargs:
            return self
        return plain(self, *args, **kwargs)

    return to


def _of_transformers() -> list[tuple[Any, str, Any]]:
    """Patches for transformers, which takes slower code paths for fake tensors."""
    import sys

    utils = sys.modules.get("transformers.utils.import_utils")
    if utils is None or not hasattr(utils, "is_fake_tensor"):
        return []
    return [(utils, "is_fake_tensor", lambda _: False)]


@contextlib.contextmanager
def _no_rng(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _foreach_kinds() -> list[list[type]]:
    """Return the lists of tensor types for which optimizers and clipping use foreach kernels."""
    from torch.optim.optimizer import _foreach_supported_types as by_optimizers
    from torch.utils._foreach_utils import _foreach_supported_types as by_clipping

    return [by_optimizers, by_clipping]
