"""Delete snapshots of projects that no unfinished job uses, here and on clusters, once an hour."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Protocol

from gflow.daemon.settings import Settings
from gflow.store import files
from gflow.targets.slurm.files.local_snapshots import parse_id

log = logging.getLogger("gflow.maintenance")
LOOK_S = 3600.0
FIRST_LOOK_S = 600.0
ACTIVE = """SELECT DISTINCT json_extract(spec, '$.snapshot') FROM jobs
WHERE state IN ('Queued', 'Hold', 'Running') AND json_extract(spec, '$.snapshot') NOT NULL
AND (?1 IS NULL OR uid = ?1)"""


class Prunable(Protocol):
    """A cluster from which snapshots can be deleted."""

    def prune_snapshots(self, used: set[str]) -> set[str] | None:
        """Delete those that are not used; the ids of those that stay. None: it cannot be told now."""


class Snapshots(Protocol):
    """Snapshots on this machine."""

    def prune(self, used: set[str], now: float, keeps_index: set[str] | None) -> None: ...


class StoredSnapshots(NamedTuple):
    """Snapshots here, the clusters that have copies of them, and their owner (None: the daemon's user)."""

    snapshots: Snapshots
    targets: Sequence[Prunable]
    uid: int | None = None


async def prune_snapshots(settings: Settings, find: Callable[[], list[StoredSnapshots]]) -> None:
    """Prune once an hour. The queries and transfers run in threads. A user's cluster may take its time."""
    await asyncio.sleep(FIRST_LOOK_S)
    while True:
        for stored in find():
            try:
                await asyncio.to_thread(prune, settings.database, *stored)
            except (sqlite3.Error, OSError) as error:
                log.error("snapshots could not be pruned, next try in an hour: %s", error)
        await asyncio.sleep(LOOK_S)


def prune(database: Path, snapshots: Snapshots, targets: Iterable[Prunable], uid: int | None = None) -> None:
    """Delete what no unfinished job uses. What was sent is remembered while a copy of it may be there."""
    used = used_snapshots(database, uid)
    kept = [target.prune_snapshots(used) for target in targets]
    known = [trees_of(one) for one in kept if one is not None]
    keeps_index = set[str]().union(*known) if len(known) == len(kept) else None
    snapshots.prune(trees_of(used), time.time(), keeps_index)


def used_snapshots(database: Path, uid: int | None = None) -> set[str]:
    """The snapshots of unfinished jobs, of all users or of one."""
    with closing(files.connect(files.real(database), "mode=ro")) as db:
        return {id for (id,) in db.execute(ACTIVE, (uid,))}


def trees_of(ids: Iterable[str]) -> set[str]:
    """The local snapshots, `PROJECT/TREE`, that these are copies of."""
    parsed = map(parse_id, ids)
    return {f"{one.project}/{one.tree}" for one in parsed}
