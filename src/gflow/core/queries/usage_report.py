"""Usage reports: the query, and the figures of the answer."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gflow.core.ids import JobKey


class Question(NamedTuple):
    """The query: jobs of which user, since when, and whether on simulated GPUs or on real ones."""

    # On the wall clock and on the boot clock.
    now: float
    boot: float
    user: str | None = None
    since: float = 0.0
    is_simulated: bool = False


class Usage(msgspec.Struct):
    """Sums over some jobs. GPU time counts only from the start of the query's period."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    timeout: int = 0
    running: int = 0
    queued: int = 0
    # Jobs that have started at least once, and the sum of their waiting times.
    started: int = 0
    waited_s: float = 0.0
    # Jobs that ran and ended, and the sum of their run times.
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
    """Predicted and measured GPU memory of a job, in MiB on the GPU with the highest use; 0: no figure."""

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
    # The most GPUs in use at one time.
    peak_gpus: int
    # Jobs on GPUs of the other kind, real or simulated.
    left_out: int


class UsedGpus(msgspec.Struct):
    """GPU time in seconds. `measured_s`: the part with readings of utilisation; `busy_s`: it times these."""

    gpu_s: float = 0.0
    measured_s: float = 0.0
    busy_s: float = 0.0

    @property
    def idle_s(self) -> float:
        """GPU time in which utilisation was read and nothing ran."""
        return self.measured_s - self.busy_s

    def add(self, gpu_s: float, busy: float | None) -> None:
        """Add GPU time. `busy`: mean utilisation, 0 to 1; None: it was not measured."""
        self.gpu_s += gpu_s
        if busy is not None:
            self.measured_s += gpu_s
            self.busy_s += gpu_s * busy


class IdleJob(NamedTuple):
    """A job that left its GPUs unused for much of the time it had them."""

    key: JobKey
    name: str
    user: str
    state: str
    used: UsedGpus


class DayUsage(NamedTuple):
    """One day: GPU time by user and project, and how long each job that started that day had waited."""

    # Midnight, in seconds since 1970.
    start: float
    used: dict[tuple[str, str], UsedGpus]
    waits_s: dict[tuple[str, str], list[float]]
