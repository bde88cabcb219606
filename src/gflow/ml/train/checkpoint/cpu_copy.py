"""Copies of state to CPU memory, so that training continues while the copy is written.

The buffers are reused for the next copy. Those for GPU tensors are pinned, which makes copying several times
faster.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from gflow.errors import UsageError

# Types that torch.load restores without running code.
PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device)


class CpuCopies:
    """Reusable buffers for one copy at a time."""

    def __init__(self) -> None:
        self._room: dict[tuple[Any, ...], torch.Tensor] = {}

    def take(self, state: Any) -> Any:
        """Return `state` with every tensor replaced by a copy. Valid until the next call."""
        used: dict[tuple[Any, ...], torch.Tensor] = {}
        seen: dict[int, torch.Tensor] = {}
        copy = self._copy(state, (), used, seen)
        self._room = used
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return copy

    def _copy(self, value: Any, path: tuple[Any, ...], used: Any, seen: dict[int, torch.Tensor]) -> Any:
        if isinstance(value, torch.Tensor):
            # Tied weights stay tied: a tensor is copied once.
            if id(value) not in seen:
                seen[id(value)] = self._copy_tensor(value, path, used)
            return seen[id(value)]
        if isinstance(value, dict):
            copy = {key: self._copy(one, (*path, key), used, seen) for key, one in value.items()}
            return with_metadata(copy, value) if isinstance(value, OrderedDict) else copy
        if isinstance(value, (list, tuple)):
            copies = [self._copy(one, (*path, at), used, seen) for at, one in enumerate(value)]
            return copies if isinstance(value, list) else tuple(copies)
        return _plain(value, path)

    def _copy_tensor(self, tensor: torch.Tensor, path: tuple[Any, ...], used: Any) -> torch.Tensor:
        room = self._room.get(path)
        if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
            room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
        used[path] = room
        return room.copy_(tensor.detach(), non_blocking=tensor.is_cuda)


def copy_shards(state: Any) -> Any:
    """Return `state` with copies of its tensors in CPU memory; a sharded tensor stays one, with its part."""
    if isinstance(state, dict):
        return {key: copy_shards(one) for key, one in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(copy_shards(one) for one in state)
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu") if state.device.type != "cpu" else state.detach().clone()
    return state


def check_state(state: Any, path: tuple[Any, ...]) -> None:
    """Raise the error of `CpuCopies.take` for a state that a checkpoint cannot hold, without copying it."""
    if isinstance(state, dict):
        for key, one in state.items():
            check_state(one, (*path, key))
    elif isinstance(state, (list, tuple)):
        for at, one in enumerate(state):
            check_state(one, (*path, at))
    elif not isinstance(state, torch.Tensor):
        _plain(state, path)


def _plain(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a value that can be loaded without running code. Numbers of NumPy become numbers of Python."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        value = value.item()
    if type(value) not in PLAIN:
        where = ".".join(map(str, path))
        raise UsageError(
            f"a checkpoint cannot hold {where}: a {type(value).__name__} could not be loaded safely",
            hint="state_dict() should return tensors, numbers, texts, lists and dictionaries",
        )
    return value


def with_metadata(copy: dict[Any, Any], state: Any) -> OrderedDict[Any, Any]:
    """Keep the module versions that models attach to their state dict."""
    ordered = OrderedDict(copy)
    if hasattr(state, "_metadata"):
        ordered._metadata = state._metadata  # type: ignore[attr-defined]
    return ordered
