"""What can happen. Every event says when, on both clocks; the engine asks nobody else."""

from __future__ import annotations

import msgspec

from gflow.core.ids import JobKey
from gflow.core.model import Gpu, JobState, Moment, Spec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events."""

    at: Moment


class Submit(Event, frozen=True, kw_only=True):
    """Somebody wants these jobs. All are taken or none."""

    uid: int
    user: str
    specs: tuple[Spec, ...]
    # For each spec, the references of --depends-on as written: `17`, `@`, `@~2`.
    references: tuple[tuple[str, ...], ...]
    # How jobs that left memory ended, for every such job the references may mean.
    outcomes: dict[JobKey, JobState]


class Cancel(Event, frozen=True, kw_only=True):
    """Somebody wants these jobs gone; `now` skips the grace time."""

    uid: int
    keys: tuple[JobKey, ...]
    now: bool = False


class Exited(Event, frozen=True, kw_only=True):
    """Nothing of this attempt lives any more. `problem` is set when it ended without an exit."""

    key: JobKey
    attempt: int
    code: int | None
    signal: int | None = None
    problem: str = ""


class Tick(Event, frozen=True, kw_only=True):
    """Time has passed: something may be due."""


class GpusSeen(Event, frozen=True, kw_only=True):
    """The GPUs of this machine, as they are now."""

    gpus: tuple[Gpu, ...]
