"""What people decided about the whole machine and the engine goes by."""

from __future__ import annotations

import msgspec


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How GPUs are given out. Comes with the daemon and is never saved: the next one has its own."""

    # sequential, random, pack or topology; see `place.in_order`.
    strategy: str = "sequential"
    # GPUs that new jobs may get, until somebody restricts them otherwise; None: all.
    gpus: frozenset[int] | None = None
    # Whether that holds against what somebody restricted them to in an earlier daemon's time.
    gpus_win: bool = False
    # Active jobs that one person may have; 0: any number. Root may have any.
    most_jobs: int = 0


USUAL = Policy()


class Drained(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where nothing more is to start, and what people said why. Kept through restarts."""

    # Why nothing starts at all; None: things start.
    everything: str | None = None
    # GPU -> why it gets no new jobs.
    gpus: dict[int, str] = {}
