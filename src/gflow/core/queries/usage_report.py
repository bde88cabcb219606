"""What was used: a question about it, and the figures that answer it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gflow.core.ids import JobKey


class Question(NamedTuple):
    """Whose jobs, from when on, and whether those on simulated GPUs are meant or those on real ones."""

    # On the wall clock and on the boot clock.
    now: float
    boot: float
    user: str | None = None
    since: float = 0.0
    is_simulated: bool = False


class Usage(msgspec.Struct):
    """Sums over some jobs. Of what GPUs were used, only what is since the question's beginning."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    timeout: int = 0
    running: int = 0
    queued: int = 0
    # Jobs that have started at least once, and how long they had waited.
    started: int = 0
    waited_s: float = 0.0
    # Jobs that ran and are over, and how long they ran.
    ran: int = 0
    run_s: float = 0.0
    gpu_s: float = 0.0
    gpu_jobs: int = 0
    gpus: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            *map(sum, zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True))
        )


class TopJob(NamedTuple):
    key: JobKey
    name: str
    user: str
    state: str
    run_s: float
    gpus: int


class Prediction(NamedTuple):
    """What was predicted of a job, and what was measured: MiB on the GPU that was fullest; 0: nothing."""

    key: JobKey
    name: str
    user: str
    state: str
    predicted_mib: int
    measured_mib: int


class Statistics(NamedTuple):
    total: Usage
    by_user: dict[str, Usage]
    by_project: dict[str, Usage]
    top: list[TopJob]
    # Most GPUs that were in use at one moment.
    peak_gpus: int
    # Jobs on GPUs of the other kind, real or simulated.
    left_out: int
