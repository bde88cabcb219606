"""What people decided about the whole machine and the engine goes by."""

from __future__ import annotations

import msgspec

from gflow.core.state.quotas import Quotas


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
    # Jobs of one person that may run at once, unless a quota says otherwise; 0: any number. Root may too.
    most_running: int = 0
    # The uid whose jobs alone may run: a private daemon runs all of them as its own user. None: everybody's.
    owner: int | None = None
    # Whether people are not to learn each other's names.
    is_private: bool = False
    # Within a priority: `shortest` predicted first, or by `arrival`.
    order: str = "shortest"
    # Whether people who had much come after people who had little; how fast what they had fades.
    fair_share: bool = True
    half_life_s: float = 7 * 86400.0
    # A job that wants the whole machine is promised its start once it has waited for so many times its own
    # length (see `promise.times_of`); 0: whoever is first in line always has a promise; below 0: nobody ever.
    patience: float = 8.0
    # How many jobs may have such a promise at once: those who have waited longest.
    promises: int = 2
    # Whether others may start before a promised start, if they cannot delay it.
    backfill: bool = True
    # How long jobs are expected to take: by `history`, or only by their `limits`.
    lengths: str = "history"
    # What people and projects may have at once, unless somebody says otherwise.
    quotas: Quotas = Quotas()
    # Jobs that use none of their GPUs for so many seconds are stopped; 0: never.
    stop_idle_s: int = 0


USUAL = Policy()


# The name under which it is kept.
DRAINED = "drained"


class Drained(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where nothing more is to start, and what people said why. Kept through restarts."""

    # Why nothing starts at all; None: things start.
    everything: str | None = None
    # GPU -> why it gets no new jobs.
    gpus: dict[int, str] = {}
