"""Position of training in the data."""

from __future__ import annotations

from typing import Any


class Position:
    """Total steps; within the current epoch, samples used by all ranks and batches of this rank."""

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0
        self.samples = 0
        self.batches = 0
        # Random number states at the start of the epoch; only with a loader of the script's own.
        self.begun: dict[str, Any] | None = None

    def next_epoch(self) -> None:
        self.epoch += 1
        self.samples = self.batches = 0
        self.begun = None

    def common(self) -> dict[str, int]:
        return {"step": self.step, "epoch": self.epoch, "samples": self.samples}

    def mine(self) -> dict[str, Any]:
        return {"batches": self.batches, "begun": self.begun}

    def restore(self, common: dict[str, int], mine: dict[str, Any] | None) -> None:
        self.step, self.epoch, self.samples = common["step"], common["epoch"], common["samples"]
        self.batches, self.begun = (mine["batches"], mine["begun"]) if mine else (0, None)
