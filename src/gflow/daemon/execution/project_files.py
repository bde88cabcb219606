"""Files of jobs for clusters: which folder is sent, and its snapshot at submission."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from gflow.core.model import Spec
from gflow.daemon.settings import Settings
from gflow.errors import Refused
from gflow.targets.slurm.files.local_snapshots import MIB, LocalSnapshots, Taken
from gflow.targets.slurm.settings import limit_mib


@cache
def snapshots_in(folder: Path) -> LocalSnapshots:
    """The snapshots below a folder: one object, as its methods exclude each other."""
    return LocalSnapshots(folder)


def with_files(settings: Settings, spec: Spec, home: str = "") -> Spec:
    """The spec with the folder that is sent, absolute, and the outputs that are fetched.

    Both are those of its target unless the job has its own. `home`: that of the job's owner; empty: ours.
    Raises Refused if the job's folder is elsewhere.
    """
    cluster = settings.clusters.get(spec.on or spec.overflow)
    if cluster is None:
        return spec
    sync = "" if spec.no_sync else spec.sync or cluster.sync
    if home and (sync == "~" or sync.startswith("~/")):
        sync = home + sync[1:]
    root = os.path.normpath(os.path.join(spec.cwd, os.path.expanduser(sync))) if sync else ""
    if root and not f"{spec.cwd}/".startswith(root.rstrip("/") + "/"):
        raise Refused(
            f"the job's folder {spec.cwd!a} is not in the folder that is sent, {root!a}",
            hint="--sync . sends the job's folder; --no-sync sends none",
        )
    return msgspec.structs.replace(spec, sync=root, outputs=spec.outputs or cluster.outputs, snapshot="")


class Takes(Protocol):
    """Takes snapshots: as we are, or as a user."""

    def take(self, root: str, limit_bytes: int) -> Taken: ...


class SnapshotTaker:
    """Takes the snapshots of one submission: one for each folder and target.

    `find` finds the snapshots of the submitter, and `run` runs a call outside the loop.
    """

    def __init__(
        self,
        settings: Settings,
        find: Callable[[], Takes] | None = None,
        run: Callable[..., Awaitable[Taken]] = asyncio.to_thread,
    ) -> None:
        self._settings, self._run = settings, run
        self._find = find or (lambda: snapshots_in(settings.snapshots))
        self._taken: dict[tuple[str, str], str] = {}
        self._notes: list[str] = []

    @property
    def note(self) -> str:
        return "; ".join(dict.fromkeys(filter(None, self._notes)))

    async def attach(self, spec: Spec) -> Spec:
        """The spec with the snapshot of its folder. Raises Refused if none can be taken."""
        key = spec.sync, spec.on or spec.overflow
        cluster = self._settings.clusters.get(key[1])
        if not spec.sync or cluster is None:
            return spec
        if key not in self._taken:
            limit = spec.sync_size_mib or limit_mib(cluster)
            taken = await self._run(self._find().take, spec.sync, limit * MIB)
            self._taken[key] = taken.id
            self._notes.append(taken.note)
        return self.known(spec)

    def known(self, spec: Spec) -> Spec:
        """The spec with a snapshot that was taken before; unchanged if there is none."""
        id = self._taken.get((spec.sync, spec.on or spec.overflow)) if spec.sync else None
        return msgspec.structs.replace(spec, snapshot=id) if id else spec
