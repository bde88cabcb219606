"""The content of a batch: move its tensors to a device, and count its samples."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import torch


def move_to_device(batch: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Return the batch with its tensors on the device, those of floating point numbers as `dtype`.

    Understands nested tuples, lists, mappings and dataclasses, and objects that have a method `to`, such as
    those of transformers' tokenizers. Anything else is returned unchanged.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, dtype if batch.is_floating_point() else None, non_blocking=True)
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)
        for key, one in batch.items():
            moved[key] = move_to_device(one, device, dtype)
        return moved
    if isinstance(batch, Mapping):
        return {key: move_to_device(one, device, dtype) for key, one in batch.items()}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        other = copy.copy(batch)
        for field in dataclasses.fields(batch):  # also of a frozen one
            object.__setattr__(other, field.name, move_to_device(getattr(batch, field.name), device, dtype))
        return other
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_to_device(one, device, dtype) for one in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_to_device(one, device, dtype) for one in batch)
    return batch


def samples_in(batch: Any) -> int:
    """Return the number of samples in a batch: the first dimension of its first tensor; 0: it has none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    return next((size for one in _parts(batch) if (size := samples_in(one))), 0)


def _parts(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return batch if isinstance(batch, (list, tuple)) else ()
