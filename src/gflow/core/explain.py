"""Why a job waits, as data. One source for gqueue, gjob, the API and everything later."""

from __future__ import annotations

import msgspec

from gflow.core.model import Job, JobState, Shape
from gflow.core.state import State


class Why(msgspec.Struct, frozen=True):
    """The first thing that keeps a job from starting: a code for programs, a detail for people."""

    code: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else self.code


def explain(state: State, job: Job) -> Why | None:
    """Why this waiting job waits; None for a job that does not wait."""
    if job.state is JobState.HOLD:
        return Why("JobHeldUser")
    if job.state is not JobState.QUEUED:
        return None
    if job.key in state.parents:
        return Why("Dependency")
    return explain_shape(state, job.spec.shape)


def explain_shape(state: State, shape: Shape) -> Why:
    """What a ready job of this shape lacks."""
    free = len(state.gpus) - len(state.holders)
    if shape.gpus > len(state.gpus):
        return Why("Resources", f"Need {shape.gpus} GPUs, this machine has {len(state.gpus)}")
    if shape.gpus > free > 0:
        return Why("Resources", f"Need {shape.gpus} GPUs, only {free} available")
    return Why("Resources")
