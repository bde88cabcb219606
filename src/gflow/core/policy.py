"""What the daemon was started with and the engine goes by. Never saved: the next daemon has its own."""

from __future__ import annotations

import msgspec


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How GPUs are given out."""

    # sequential, random or pack; see `place.in_order`.
    strategy: str = "sequential"
    # GPUs that new jobs may get, until somebody restricts them otherwise; None: all.
    gpus: frozenset[int] | None = None
    # Whether that holds against what somebody restricted them to in an earlier daemon's time.
    gpus_win: bool = False


USUAL = Policy()
