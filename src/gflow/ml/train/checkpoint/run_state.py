"""The run state: all parts of a run that are saved in checkpoints and restored from them.

A checkpoint of a sharded model can be restored into one that is not sharded, and the reverse, so that a run
resumes on any number of processes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from gflow.errors import UsageError
from gflow.ml.train.checkpoint.checkpoint_dir import CheckpointError
from gflow.ml.train.checkpoint.checkpointer import Checkpointer, Loaded
from gflow.ml.train.checkpoint.cpu_copy import with_metadata
from gflow.ml.train.parallel import is_sharded, is_sharded_tensor, unwrap

# Name of the model that is registered without one.
MODEL = "model"
# torch.compile adds it to the names of parameters.
COMPILED = "_orig_mod."


class RunState:
    """Models, optimizers, schedulers, scaler and other objects with a state."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.models: dict[str, nn.Module] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[Any] = []
        self.scaler: Any = None
        self.others: dict[str, Any] = {}

    @property
    def model(self) -> nn.Module | None:
        """The first model."""
        return next(iter(self.models.values()), None)

    def add_model(self, name: str, model: nn.Module) -> None:
        if name in self.models:
            raise UsageError(
                f"run.model was called twice for {name!a}: a checkpoint would hold only the last model",
                hint='give each model a name: run.model(net, "discriminator")',
            )
        self.models[name] = model

    def parameters(self) -> Iterator[nn.Parameter]:
        for model in self.models.values():
            yield from model.parameters()

    @property
    def is_sharded(self) -> bool:
        return any(is_sharded(model) for model in self.models.values())

    # ------------------------------------------------------------ saving

    def capture(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the state that all ranks share, and the sharded state (None if no model is sharded)."""
        common: dict[str, Any] = {
            "schedulers": [one.state_dict() for one in self.schedulers],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "others": {name: self._other(one) for name, one in self.others.items()},
            "names": list(self.models),
        }
        if self.is_sharded:
            return common, self._sharded()
        weights = {name: weights_of(model) for name, model in self.models.items()}
        common["model"] = weights.pop(MODEL, None)
        common["models"] = weights
        common["optimizers"] = [one.state_dict() for one in self.optimizers]
        return common, None

    def _other(self, thing: Any) -> Any:
        return _gathered(state_of(thing)) if self.is_sharded else state_of(thing)

    def _sharded(self) -> dict[str, Any]:
        """Return the state of models and optimizers by the names of parameters, as PyTorch shards it."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        found: dict[str, Any] = {"models": {}}
        for name, model in self.models.items():
            weights, optimizers = get_state_dict(model, self._optimizers_of(model))
            parts = {"model": weights, "optimizers": optimizers}
            if name == MODEL:
                found |= parts
            else:
                found["models"][name] = parts
        return found

    def _optimizers_of(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        if len(self.models) == 1:
            return self.optimizers
        own = {id(one) for one in model.parameters()}
        return [one for one in self.optimizers if id(one.param_groups[0]["params"][0]) in own]

    # ------------------------------------------------------------ restoring

    def restore(self, loaded: Loaded, checkpointer: Checkpointer) -> None:
        state = loaded.state
        self._compare(state)
        if "model" not in state:
            self._restore_shards(loaded.path, checkpointer)
        elif self.is_sharded:
            self._restore_into_shards(state)
        else:
            for name, model in self.models.items():
                load_weights(model, _weights_in(state, name))
            for one, saved in zip(self.optimizers, state["optimizers"], strict=True):
                one.load_state_dict(saved)
        for one, saved in zip(self.schedulers, state["schedulers"], strict=True):
            one.load_state_dict(saved)
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])
        for name, one in self.others.items():
            saved = state["others"][name]
            restore_state(one, _sharded_as(state_of(one), saved) if self.is_sharded else saved)

    def _restore_shards(self, path: str, checkpointer: Checkpointer) -> None:
        """Load a sharded checkpoint, written by any number of ranks. The models need not be sharded."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        parts = self._sharded()
        checkpointer.load_shards(path, parts)
        for name, model in self.models.items():
            part = parts if name == MODEL else parts["models"][name]
            set_state_dict(
                model,
                self._optimizers_of(model),
                model_state_dict=part["model"],
                optim_state_dict=part["optimizers"],
            )

    def _restore_into_shards(self, state: dict[str, Any]) -> None:
        """Load a checkpoint that is not sharded into sharded models."""
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            set_model_state_dict,
            set_optimizer_state_dict,
        )

        whole = StateDictOptions(full_state_dict=True)
        saved = dict(zip(map(id, self.optimizers), state["optimizers"], strict=True))
        for name, model in self.models.items():
            set_model_state_dict(model, dict(_weights_in(state, name)), options=whole)
            for optimizer in self._optimizers_of(model):
                named = _by_name(saved[id(optimizer)], optimizer, model)
                set_optimizer_state_dict(model, optimizer, named, options=whole)

    def _compare(self, state: dict[str, Any]) -> None:
        """Refuse a checkpoint of another program before anything is loaded."""
        saved = state.get("names", [MODEL] if state.get("model", self.models) else [])
        if set(saved) != set(self.models):
            raise CheckpointError(
                f"the checkpoint has the models {sorted(saved)}, and this run has {sorted(self.models)}",
                hint="call run.resume() after all of them are registered",
            )
        theirs = (
            len(state.get("optimizers", self.optimizers)),
            len(state["schedulers"]),
            set(state["others"]),
        )
        ours = (len(self.optimizers), len(self.schedulers), set(self.others))
        if theirs != ours:
            raise CheckpointError(
                f"the checkpoint has {theirs[0]} optimizers, {theirs[1]} schedulers and {sorted(theirs[2])}; "
                f"this run has {ours[0]}, {ours[1]} and {sorted(ours[2])}",
                hint="call run.resume() after all of them are registered",
            )


def state_of(thing: Any) -> Any:
    """Return the state of an object that is kept; an average of the weights contains a model."""
    return weights_of(thing) if isinstance(thing, nn.Module) else thing.state_dict()


def _gathered(state: Any) -> Any:
    """Return the state with each sharded tensor whole. All ranks call it; the first rank saves it."""
    if isinstance(state, dict):
        whole = {key: _gathered(one) for key, one in state.items()}
        return with_metadata(whole, state) if isinstance(state, OrderedDict) else whole
    if isinstance(state, (list, tuple)):
        return type(state)(map(_gathered, state))
    return state.full_tensor().cpu() if is_sharded_tensor(state) else state


def _sharded_as(own: Any, saved: Any) -> Any:
    """Return the saved state with each tensor sharded that is sharded in the object's own state."""
    if isinstance(saved, dict) and isinstance(own, dict):
        parts = {key: _sharded_as(own.get(key), one) for key, one in saved.items()}
        return with_metadata(parts, saved) if isinstance(saved, OrderedDict) else parts
    if isinstance(saved, (list, tuple)) and isinstance(own, (list, tuple)) and len(saved) == len(own):
        return type(saved)(map(_sharded_as, own, saved))
    if not is_sharded_tensor(own):
        return saved
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(saved.to(own.device), own.device_mesh, own.placements)


def restore_state(thing: Any, saved: Any) -> None:
    if isinstance(thing, nn.Module):
        load_weights(thing, saved)
    else:
        thing.load_state_dict(saved)


def weights_of(model: nn.Module) -> Any:
    """Return the state dict of a model, under the same names whether or not it is compiled or wrapped."""
    inner = unwrap(model)
    weights = inner.state_dict()
    return _renamed(weights, _plain_names(inner, weights))


def load_weights(model: nn.Module, saved: Any) -> None:
    inner = unwrap(model)
    own = {plain: name for name, plain in _plain_names(inner, inner.state_dict()).items()}
    inner.load_state_dict(
        _renamed(saved, {name: own.get(name.replace(COMPILED, ""), name) for name in saved})
    )


def _plain_names(model: nn.Module, weights: Any) -> dict[str, str]:
    """Return the names of weights without what torch.compile and DDP add to them in parts of the model."""
    wrapped = [path for path, part in model.named_modules() if path and unwrap(part) is not part]
    found = {}
    for name in weights:
        plain = name
        for path in wrapped:
            if name.startswith(f"{path}.module."):
                plain = path + name.removeprefix(f"{path}.module")
        found[name] = plain.replace(COMPILED, "")
    return found


def _renamed(weights: Any, names: dict[str, str]) -> Any:
    if all(name == other for name, other in names.items()):
        return weights
    return OrderedDict((names[name], tensor) for name, tensor in weights.items())


def _weights_in(state: dict[str, Any], name: str) -> Any:
    return state["model"] if name == MODEL else state["models"][name]


def _by_name(saved: dict[str, Any], optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of an optimizer with the names of parameters instead of their numbers."""
    names = {id(one): name.replace(COMPILED, "") for name, one in model.named_parameters()}
    order = [names[id(one)] for group in optimizer.param_groups for one in group["params"]]
    return {
        "state": {order[number]: one for number, one in saved["state"].items()},
        "param_groups": [
            {**group, "params": [order[number] for number in group["params"]]}
            for group in saved["param_groups"]
        ],
    }
