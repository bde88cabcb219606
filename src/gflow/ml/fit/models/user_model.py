"""Models from a user's function: `--py module:callable`.

The callable returns `(model, batch)` or `(model, batch, step)`. `batch` is a dictionary for
`model(**batch)`, a tuple `(inputs, targets)`, one tensor, or a function that returns one of these.
`step(model, batch, optimizer)` does a complete training step. Without it the loss is the output's `.loss`, a
scalar output, or the cross-entropy (mean squared error for floating-point targets) with the targets.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils._pytree import tree_map

from gflow.errors import Refused, UsageError
from gflow.ml.fit.models.model_builder import without_values
from gflow.ml.fit.models.workload import Workload, adapt, weight_dtype
from gflow.ml.fit.recipe import Recipe

FORM = "--py module:callable, which returns (model, batch) or (model, batch, step)"


def workload(given: str, recipe: Recipe) -> Workload:
    return of(_load_callable(given), recipe)


def of(make: Any, recipe: Recipe) -> Workload:
    """Return the workload of a callable, which may accept the batch size and the sequence length."""
    with without_values():
        made = build(make, recipe.batch, recipe.sequence, has_values=False)
    model = made[0].to(weight_dtype(recipe))
    if recipe.lora:
        adapt(model, recipe)
    if recipe.checkpointing:
        if not hasattr(model, "gradient_checkpointing_enable"):
            raise Refused(
                "this model has no gradient_checkpointing_enable", hint="checkpoint inside the model itself"
            )
        model.gradient_checkpointing_enable()
    model.train()
    step = made[2] if len(made) == 3 else None
    return Workload(model, lambda: _on_device(made[1], recipe), loss, step)


def build(make: Any, batch: int, sequence: int | None, *, has_values: bool) -> tuple[Any, ...]:
    """Call `make`. A model that existed before is replaced by a copy, so that the caller's is not changed.

    `has_values`: whether the copy needs the weights, or only their sizes.
    """
    accepted = inspect.signature(make).parameters
    offered = {"batch": batch, "sequence": sequence, "seq": sequence}
    registered: list[Any] = []  # holds them, so that no id is used twice
    hooks = [
        register_module_parameter_registration_hook(lambda *words: registered.append(words[2])),
        register_module_buffer_registration_hook(lambda *words: registered.append(words[2])),
    ]
    try:
        made = make(**{name: value for name, value in offered.items() if name in accepted})
    except Exception as error:
        name = getattr(make, "__qualname__", "the callable")
        raise Refused(f"{name} failed: {type(error).__name__}: {error}", hint=FORM) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise UsageError("the callable did not return a model and a batch", hint=FORM)
    _check_whole(made[0])
    fresh = set(map(id, registered))
    if all(id(tensor) in fresh for tensor in _tensors(made[0])):
        return made
    return _copy(made[0], has_values=has_values), *made[1:]


def _check_whole(model: Any) -> None:
    """Refuse a model of which this process has a part: it cannot be copied, and training needs the whole."""
    is_wrapped = any(type(one).__name__ == "FullyShardedDataParallel" for one in model.modules())
    if is_wrapped or any(hasattr(one, "placements") for one in model.parameters()):  # as DTensors have
        raise Refused(
            "this model is sharded already",
            hint="give it as it was before fully_shard; find_batch_size(make, ready=shard) shards it after "
            "the prediction, and gflow plan counts what sharding saves",
        )


def _tensors(model: Any) -> list[Any]:
    return [*model.parameters(), *model.buffers()]


def _copy(model: Any, *, has_values: bool) -> Any:
    """A copy of a model; without values, its weights take no memory."""
    memo: dict[int, Any] = {}
    for tensor in () if has_values else _tensors(model):
        empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    try:
        copied = copy.deepcopy(model, memo)
        copied.zero_grad(set_to_none=True)
        return copied
    except Exception as error:
        raise Refused(
            f"this model exists already and cannot be copied: {type(error).__name__}: {error}",
            hint="build the model inside the callable",
        ) from error


def _load_callable(given: str) -> Any:
    name, _, attribute = given.partition(":")
    if not name or not attribute:
        raise UsageError(f"{given!a} names no callable", hint=FORM)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(name.removesuffix(".py").replace("/", "."))
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot load {given!a}: {error}", hint=FORM) from None
    if not callable(found):
        raise UsageError(f"{given!a} is not callable", hint=FORM)
    return found


def _on_device(batch: Any, recipe: Recipe) -> Any:
    device = torch.device("cuda", 0)
    made = batch() if callable(batch) else batch

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device == device:
            return value
        value = torch.empty(value.shape, dtype=value.dtype).to(device)
        return value.to(weight_dtype(recipe)) if value.is_floating_point() else value

    moved = tree_map(move, made)
    if recipe.channels_last:
        moved = tree_map(_channels_last, moved)
    return moved


def _channels_last(value: Any) -> Any:
    is_picture = isinstance(value, torch.Tensor) and value.dim() == 4
    return value.to(memory_format=torch.channels_last) if is_picture else value


def loss(model: Any, batch: Any) -> Any:
    targets = None
    if isinstance(batch, dict):
        out = model(**batch)
    elif isinstance(batch, torch.Tensor):
        out = model(batch)
    else:
        inputs, targets = batch
        out = model(inputs)
    found = getattr(out, "loss", None)
    if found is not None:
        return found
    if isinstance(out, dict) and "loss" in out:
        return out["loss"]
    if isinstance(out, torch.Tensor) and out.dim() == 0:
        return out
    if targets is None or not isinstance(out, torch.Tensor):
        raise UsageError(
            "the model returns no loss", hint="return (model, batch, step), or a batch (inputs, targets)"
        )
    if targets.is_floating_point():
        return functional.mse_loss(out, targets)
    if out.dim() == 3:
        return functional.cross_entropy(out.flatten(0, 1), targets.flatten())
    return functional.cross_entropy(out, targets)
