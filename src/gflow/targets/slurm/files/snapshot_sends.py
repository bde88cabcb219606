"""Snapshots on their way to a cluster: each is sent before sbatch is called, and again after a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gflow.targets.slurm.background_calls import Calls
from gflow.targets.slurm.candidate import Retry
from gflow.targets.slurm.files.local_snapshots import SnapshotId, parse_id
from gflow.targets.slurm.files.snapshot_transfer import Sent

# The longest pause before a snapshot is sent again.
LONGEST_S = 60.0
NOT_STARTED = Sent(False, "the transfer could not be started")
Report = Callable[[str, str], None]


class Transfer(Protocol):
    """Sends snapshots to one cluster, and deletes old ones there: as we are, or as a user."""

    def send(self, snapshot: SnapshotId) -> Sent: ...

    def progress(self) -> str: ...

    def prune(self, used: set[str]) -> set[str]: ...


class SnapshotSends:
    """Which snapshots are there. Used by the worker's thread; the transfers run outside it, one at a time."""

    def __init__(self, calls: Calls, clock: Callable[[], float]) -> None:
        self._calls, self._clock = calls, clock
        # Makes the transfer; set by the worker.
        self.make: Callable[[], Transfer] | None = None
        self._transfer: Transfer | None = None
        self._there: set[str] = set()
        # Snapshots that can never be sent, and why.
        self.lost: dict[str, str] = {}
        # The snapshot that is being sent; empty: none.
        self._sending = ""
        self._retries: dict[str, Retry] = {}

    def is_settled(self, snapshot: str, report: Report) -> bool:
        """Whether a snapshot is there, or can never be. If not, its transfer is started when it is due.

        `report(snapshot, reason)` tells why jobs wait for it.
        """
        if not snapshot or snapshot in self._there or snapshot in self.lost:
            return True
        if snapshot == self._sending and self._transfer is not None and (done := self._transfer.progress()):
            report(snapshot, f"SendingFiles: {done} of its files have been copied to the cluster")
        retry = self._retries.setdefault(snapshot, Retry())
        if not self._sending and self._clock() >= retry.at:
            self._start(snapshot, report)
        return snapshot in self._there or snapshot in self.lost

    def _start(self, snapshot: str, report: Report) -> None:
        assert self.make is not None
        self._transfer = self._transfer or self.make()
        transfer, id = self._transfer, parse_id(snapshot)
        self._sending = snapshot
        report(snapshot, "SendingFiles: its files are being copied to the cluster")
        self._calls.start(
            lambda: transfer.send(id), lambda sent: self._finish(snapshot, sent, report), NOT_STARTED
        )

    def _finish(self, snapshot: str, sent: Sent, report: Report) -> None:
        self._sending = ""
        if sent.ok:
            self._there.add(snapshot)
            self._retries.pop(snapshot, None)
        elif sent.is_final:
            self.lost[snapshot] = sent.error
        else:
            self._retries[snapshot].back_off(self._clock(), LONGEST_S)
            report(snapshot, f"FilesNotSent: {sent.error}; gflow goes on trying")
