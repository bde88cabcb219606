"""Tracks tensor storages: records when an operator first returns one, and when it is freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from gflow.ml.fit.cuda.allocation_trace import AllocationTrace
from gflow.ml.fit.cuda.architectures import Architecture
from gflow.ml.fit.cuda.workspace import Workspaces


class StorageTracker:
    """Records the storages and workspaces of all operators in an allocation trace."""

    def __init__(self, trace: AllocationTrace, card: Architecture) -> None:
        self.trace = trace
        self._workspaces = Workspaces(trace, card)
        # Live storages by their C++ address: request number, and the weak reference that reports the release.
        self._known: dict[int, tuple[int, Any]] = {}

    def run(self, func: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        """Run one operator. Its workspaces are requested after its results and released at once, unless a
        rule knows the order.
        """
        out = call()
        self._workspaces.record_in_order(func, args, out, self.track)
        if isinstance(out, torch.Tensor):
            self.track(out, func)
        elif out is not None:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.track(leaf, func)
        if self.trace.step == 1 and self.trace.phase != "optimizer":
            self._count(func, args, kwargs, out)
        for scratch in self._workspaces.of(func, args, out):
            numbers = [self.trace.request(size, str(func), "workspace") for size in scratch]
            for number in reversed(numbers):  # as C++ destroys local variables
                self.trace.release(number)
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count kernels and floating-point operations, for the estimate of the step time."""
        if not func.is_view:
            self.trace.kernels += 1
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            if "scaled_dot_product" in func._schema.name:
                args = _with_all_heads(args)
            self.trace.flops += int(count(*args, **kwargs, out_val=out))

    def track(self, tensor: Any, func: Any = "") -> int | None:
        """Return the request number of a tensor's storage, recording a new one; None for other devices."""
        if tensor.device.type != "cuda":
            return None
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._known.get(key)
        if known is not None:
            return known[0]
        size = storage.nbytes()
        if size == 0:
            return None
        number = self.trace.request(size, str(func))

        def on_release(_: Any, key: int = key, number: int = number) -> None:
            if self._known.pop(key, None) is not None:
                self.trace.release(number)

        self._known[key] = (number, weakref.ref(storage, on_release))
        return number


def _with_all_heads(args: Any) -> list[Any]:
    """Replace tensors with grouped heads by the shape that they are broadcast to.

    The counter of PyTorch 2.11 refuses keys and values with fewer heads than the query has.
    """
    heads = max(one.shape[1] for one in args if isinstance(one, torch.Tensor) and one.dim() == 4)
    return [
        (one.shape[0], heads, *one.shape[2:]) if isinstance(one, torch.Tensor) and one.dim() == 4 else one
        for one in args
    ]
