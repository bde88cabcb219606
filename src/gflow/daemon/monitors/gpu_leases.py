"""Watches GPU leases that daemons of other users hold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable

from gflow.core.model import Gpu
from gflow.privileged.port import Privileged
from gflow.targets.local.gpu_leases import holder_name

LOOK_S = 1.0


class LeaseWatch:
    """The leases of this machine's GPUs.

    No notification comes when another daemon takes or frees a GPU. The shim finds out when it tries to lock
    the lease for a job; from then on the lease is polled once a second until it is free.
    """

    def __init__(
        self,
        running: Callable[[int], bool],
        report: Callable[[dict[int, str]], None],
        privileged: Privileged,
        strays: Callable[[], dict[int, str]] = dict,
        *,
        rules: bool = False,
    ) -> None:
        """`rules`: set for the daemon in system mode, which removes its own locks when it stops."""
        self._rules = rules
        self._privileged = privileged
        self._folder = privileged.lease_folder()
        # GPUs of this daemon's runs that the database does not know.
        self._strays = strays
        self._paths: dict[int, str] = {}
        self._files: frozenset[str] = frozenset()
        self._running = running
        self._report = report
        self._foreign: dict[int, str] = {}
        self._timer: asyncio.TimerHandle | None = None

    def see(self, gpus: Iterable[Gpu]) -> None:
        """Set the machine's GPUs."""
        # Simulated GPUs belong to one daemon, unless GFLOW_LEASE_DIR names a folder to share them in.
        named = {gpu.index: f"{self._folder}/{gpu.uuid}" for gpu in gpus if self._folder and _is_leased(gpu)}
        if named != self._paths:
            self._paths, self._files = named, frozenset(named.values())
            self.look()

    def close(self) -> None:
        """Give up the lock files when the daemon stops without a successor."""
        if self._rules:
            self._privileged.remove_leases(self._paths.values())

    def paths(self, indices: Iterable[int]) -> list[str]:
        """The lock files of these GPUs."""
        return [self._paths[index] for index in indices if index in self._paths]

    def is_lease(self, path: str) -> bool:
        """Whether this is the lock file of a GPU of this machine."""
        return path in self._files

    def look(self, lost: Iterable[int] = ()) -> None:
        """Find the holder of each lease, and report changes. Polls while another daemon holds one.

        GPUs of this daemon's running jobs are skipped, except those in `lost`: a job just failed to get them.
        """
        foreign = {}
        for index, path in self._paths.items():
            is_ours = self._running(index) and index not in lost
            holder = None if is_ours else self._privileged.lease_holder(path)
            if holder is not None:
                foreign[index] = holder_name(holder)
        foreign |= self._strays()
        if foreign != self._foreign:
            self._foreign = foreign
            self._report(foreign)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look) if foreign else None


def _is_leased(gpu: Gpu) -> bool:
    return not gpu.simulated or "GFLOW_LEASE_DIR" in os.environ
