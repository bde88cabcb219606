"""The content of a batch: move its tensors to a device, and count its samples."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence


def move_to_device(batch: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Return the batch with its tensors on the device, those of floating point numbers as `dtype`.

    Understands nested tuples, lists, mappings and dataclasses, and objects that have a method `to`, such as
    those of transformers' tokenizers. Such an object keeps its types unless it is a mapping too. Anything
    else is returned unchanged.
    """
    if isinstance(batch, (torch.Tensor, PackedSequence)):
        return batch.to(device, dtype if batch.data.is_floating_point() else None, non_blocking=True)
    if callable(getattr(batch, "to", None)):
        batch = batch.to(device)
        if dtype is None or not isinstance(batch, Mapping):
            return batch
    return _with_content(batch, lambda one: move_to_device(one, device, dtype))


def _with_content(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a container, with each part changed; anything else as it is."""
    if isinstance(batch, MutableMapping):
        mapping = copy.copy(batch)
        for key, one in batch.items():
            mapping[key] = change(one)
        return mapping
    if isinstance(batch, Mapping):
        return {key: change(one) for key, one in batch.items()}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        record = copy.copy(batch)
        for field in dataclasses.fields(batch):  # also of a frozen one
            object.__setattr__(record, field.name, change(getattr(batch, field.name)))
        return record
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(change(one) for one in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(change(one) for one in batch)
    return batch


def samples_in(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor with a dimension; 0: none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 0
    return next((size for one in _parts(batch) if (size := samples_in(one))), 0)


def _parts(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return batch if isinstance(batch, (list, tuple)) else ()
