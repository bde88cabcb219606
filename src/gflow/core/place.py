"""Which GPUs a job gets. A choice, never a change: the engine books what is chosen here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gflow.core.model import Spec
    from gflow.core.state import State


def choose(state: State, spec: Spec) -> tuple[int, ...] | None:
    """Free GPUs for this job, lowest index first, or None if it cannot start now."""
    shape = spec.shape
    if shape.cpus > state.free_cpus:
        return None
    if not shape.gpus:
        return ()
    free = state.free_gpus()
    return tuple(free[: shape.gpus]) if len(free) >= shape.gpus else None
