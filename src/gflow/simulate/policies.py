"""The policies that can be compared. Each is the engine itself with other settings."""

from __future__ import annotations

from gflow.core.policy import USUAL, Policy


def _in_order(patience: float, *, backfill: bool = True) -> Policy:
    """By arrival, knowing only time limits."""
    return Policy(
        order="arrival", fair_share=False, lengths="limits", patience=patience, backfill=backfill, promises=1
    )


POLICIES: dict[str, tuple[str, Policy]] = {
    "fifo": ("strictly in order: nobody passes whoever is first", _in_order(0.0, backfill=False)),
    "greedy": ("in order, and whoever fits starts: as gflow does it", _in_order(-1.0)),
    "easy": ("EASY backfilling by time limits", _in_order(0.0)),
    "easy-perfect": ("EASY backfilling, all run times known", _in_order(0.0)),
    "ours": ("the default of gflowd", USUAL),
    "throughput": ("ours, with policy.patience = 14", Policy(patience=14.0)),
    "unprotected": ("ours, with policy.protect = false", Policy(patience=-1.0)),
}
