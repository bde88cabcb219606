"""The run state: all parts of a run that are saved in checkpoints and restored from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gflow.ml.train.checkpoint.checkpoint_dir import CheckpointError
from gflow.ml.train.checkpoint.checkpointer import Checkpointer, Loaded
from gflow.ml.train.parallel import is_sharded, unwrap


class RunState:
    """Model, optimizers, schedulers, scaler and other objects with a state."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.model: nn.Module | None = None
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[Any] = []
        self.scaler: Any = None
        self.others: dict[str, Any] = {}

    def capture(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the state that all ranks share, and the sharded state (None if the model is not sharded)."""
        common: dict[str, Any] = {
            "schedulers": [one.state_dict() for one in self.schedulers],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "others": {name: one.state_dict() for name, one in self.others.items()},
        }
        if self.model is not None and is_sharded(self.model):
            return common, self._sharded()
        common["model"] = None if self.model is None else unwrap(self.model).state_dict()
        common["optimizers"] = [one.state_dict() for one in self.optimizers]
        return common, None

    def _sharded(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        assert self.model is not None
        model, optimizers = get_state_dict(self.model, self.optimizers)
        return {"model": model, "optimizers": optimizers}

    def restore(self, loaded: Loaded, checkpointer: Checkpointer) -> None:
        state = loaded.state
        self._compare(state)
        if self.model is not None and is_sharded(self.model):
            from torch.distributed.checkpoint.state_dict import set_state_dict

            parts = self._sharded()
            checkpointer.load_shards(loaded.path, parts)
            set_state_dict(
                self.model,
                self.optimizers,
                model_state_dict=parts["model"],
                optim_state_dict=parts["optimizers"],
            )
        else:
            if self.model is not None:
                unwrap(self.model).load_state_dict(state["model"])
            for one, saved in zip(self.optimizers, state["optimizers"], strict=True):
                one.load_state_dict(saved)
        for one, saved in zip(self.schedulers, state["schedulers"], strict=True):
            one.load_state_dict(saved)
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])
        for name, one in self.others.items():
            one.load_state_dict(state["others"][name])

    def _compare(self, state: dict[str, Any]) -> None:
        """Refuse a checkpoint of another program before anything is loaded."""
        sharded = self.model is not None and is_sharded(self.model)
        if sharded != ("model" not in state):
            raise CheckpointError(
                "the checkpoint and this run do not shard the model in the same way",
                hint="use the strategy that it was written with, or another folder",
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
