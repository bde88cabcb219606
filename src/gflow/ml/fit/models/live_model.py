"""A model that exists already, with an example of its batches: `estimate(model=net, example=(x, y))`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from gflow.errors import UsageError

EXAMPLE = "example=(inputs, targets), a mapping for model(**example), or one tensor"
PURE = {torch.bfloat16: "bf16-pure", torch.float16: "fp16-pure"}


class LiveModel:
    """The function that `py` takes. It is called with a batch size, and gives the example that size."""

    def __init__(self, model: Any, example: Any, step: Callable[..., Any] | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(f"model={type(model).__name__} is no torch.nn.Module", hint="model=Net()")
        self._model = _unwrapped(model)
        self._example = dict(example) if isinstance(example, Mapping) else example
        self._step = step
        sizes = [one.shape[0] for one in tree_leaves(self._example) if _is_batched(one)]
        if not sizes:
            raise UsageError("the example has no tensor with a batch dimension", hint=EXAMPLE)
        # The number of samples in the example.
        self.batch: int = sizes[0]

    def __str__(self) -> str:
        return type(self._model).__name__

    @property
    def precision(self) -> str | None:
        """The precision of a model whose weights are all in 16 bit; None: as training names it."""
        found = {one.dtype for one in self._model.parameters() if one.is_floating_point()}
        return PURE.get(found.pop()) if len(found) == 1 else None

    def __call__(self, batch: int) -> tuple[Any, ...]:
        def resized(one: Any) -> Any:
            if not isinstance(one, torch.Tensor):
                return one
            is_batched = _is_batched(one) and one.shape[0] == self.batch
            return torch.empty((batch, *one.shape[1:]) if is_batched else one.shape, dtype=one.dtype)

        # Created when the run is recorded, on the fake device: its values take no memory.
        made = self._model, lambda: tree_map(resized, self._example)
        return made if self._step is None else (*made, self._step)


def _unwrapped(model: Any) -> Any:
    """The model itself: a copy of a wrapper would take its compiler or process group along."""
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return _unwrapped(model.module)
    return _unwrapped(model._orig_mod) if hasattr(model, "_orig_mod") else model


def _is_batched(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.dim() > 0
