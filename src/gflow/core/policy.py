"""Policy: the settings of the machine that the engine uses, and drains."""

from __future__ import annotations

import msgspec

from gflow.core.state.quotas import Quotas


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings `policy.*`. Given by the daemon at its start and never saved."""

    # Placement strategy: sequential, random, pack or topology; see `core.scheduling.placement`.
    strategy: str = "sequential"
    # GPUs that new jobs may get, unless `gctl set-gpus` changes that; None: all.
    gpus: frozenset[int] | None = None
    # Whether `gpus` overrides a persisted `gctl set-gpus`.
    gpus_win: bool = False
    # Active jobs that one user may have; 0: no limit. Root is exempt.
    most_jobs: int = 0
    # Running jobs that one user may have, unless a quota overrides it; 0: no limit. Root is exempt.
    most_running: int = 0
    # Private daemon: the only uid that may submit, because all jobs run as it. None: any user.
    owner: int | None = None
    # Whether the names of other users are hidden.
    is_private: bool = False
    # Order within a priority and band: `shortest` estimated runtime first, or `arrival`.
    order: str = "shortest"
    # Whether users with much recent use come after users with little; half-life of use.
    fair_share: bool = True
    half_life_s: float = 7 * 86400.0
    # A job that needs the whole machine gets a start reservation after waiting for this many times its own
    # length; smaller jobs earlier (see `core.scheduling.backfill`). 0: the first in the queue always has one;
    # below 0: no start reservations.
    patience: float = 8.0
    # Start reservations at a time, for jobs with GPUs and again for jobs without: those that waited longest.
    max_start_reservations: int = 2
    # Whether jobs that do not delay a start reservation may be backfilled.
    backfill: bool = True
    # Source of runtime estimates: `history`, or time `limits` only.
    lengths: str = "history"
    # Quotas of users and projects from gflow.toml; `gctl quota set` overrides them.
    quotas: Quotas = Quotas()
    # Jobs that use none of their GPUs for this many seconds are stopped; 0: never.
    stop_idle_s: int = 0


USUAL = Policy()


# Name of the stored setting.
DRAINED = "drained"


class Drained(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Drains of the machine and of GPUs, with the reasons that operators gave. Survives restarts."""

    # Reason of the drain of the machine; None: not drained.
    everything: str | None = None
    # GPU -> reason of its drain.
    gpus: dict[int, str] = {}
