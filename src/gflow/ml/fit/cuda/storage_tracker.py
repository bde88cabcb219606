"""Follows storages: each is written on the tape when an operator first returns it, and when it is gone."""

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


class Watch:
    def __init__(self, tape: AllocationTrace, card: Architecture) -> None:
        self.tape = tape
        # Storages that live, by their address in C++, with the watcher of their end.
        self._workspaces = Workspaces(tape, card)
        self._known: dict[int, tuple[int, Any]] = {}

    def run(self, func: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        """Carry out one operator; its scratch memory comes after its results, and goes at once."""
        out = call()
        if isinstance(out, torch.Tensor):
            self.saw(out, func)
        elif out is not None:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.saw(leaf, func)
        if self.tape.step == 1 and self.tape.phase != "optimizer":
            self._count(func, args, kwargs, out)
        for scratch in self._workspaces.of(func, args, out):
            for number in [self.tape.request(size, str(func), "workspace") for size in scratch]:
                self.tape.release(number)
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """What the operator is to a GPU, for whoever asks how long a step takes."""
        if not func.is_view:
            self.tape.kernels += 1
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.tape.flops += int(count(*args, **kwargs, out_val=out))

    def saw(self, tensor: Any, func: Any = "") -> int | None:
        """The number of the request behind a tensor of the device."""
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
        number = self.tape.request(size, str(func))

        def gone(_: Any, key: int = key, number: int = number) -> None:
            if self._known.pop(key, None) is not None:
                self.tape.release(number)

        self._known[key] = (number, weakref.ref(storage, gone))
        return number
