"""Snapshots on their way: each is sent once, failures are tried again, lost ones are told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gflow.targets.slurm.background_calls import InlineCalls
from gflow.targets.slurm.files.local_snapshots import SnapshotId
from gflow.targets.slurm.files.rsync import parse_progress
from gflow.targets.slurm.files.snapshot_sends import SnapshotSends
from gflow.targets.slurm.files.snapshot_transfer import Sent

ONE, TWO = "p/20261118-144132-0001.aa", "p/20261118-144132-0001.bb"


class Sends:
    """Sends to a cluster whose answers a test gives."""

    def __init__(self, *answers: Sent) -> None:
        self.answers, self.sent, self.reports = list(answers), list[str](), list[str]()
        self.now, self.shown = 0.0, ""
        self.sends = SnapshotSends(InlineCalls(), lambda: self.now)
        self.sends.make = lambda: self  # type: ignore[assignment,return-value]

    def send(self, snapshot: SnapshotId) -> Sent:
        self.sent.append(str(snapshot))
        return self.answers.pop(0)

    def progress(self) -> str:
        return self.shown

    def is_settled(self, snapshot: str) -> bool:
        return self.sends.is_settled(snapshot, lambda id, reason: self.reports.append(reason))


def test_snapshot_is_sent_once_for_all_jobs_of_a_submission() -> None:
    sends = Sends(Sent(True), Sent(True))
    assert sends.is_settled("")
    assert sends.is_settled(ONE) and sends.is_settled(ONE) and sends.is_settled(TWO)
    assert sends.sent == [ONE, TWO]


def test_failure_is_reported_and_tried_again_after_a_pause() -> None:
    sends = Sends(Sent(False, "your disk quota on far is used up"), Sent(True))
    assert not sends.is_settled(ONE) and not sends.is_settled(ONE)
    assert sends.sent == [ONE]
    assert sends.reports[-1] == "FilesNotSent: your disk quota on far is used up; gflow goes on trying"
    sends.now = 3.0
    assert sends.is_settled(ONE)


def test_snapshot_that_is_gone_here_is_settled_and_lost() -> None:
    sends = Sends(Sent(False, "the copy of its files is gone here", True))
    assert sends.is_settled(ONE)
    assert sends.sends.lost == {ONE: "the copy of its files is gone here"}


def test_progress_of_a_transfer_is_reported_to_the_jobs_that_wait_for_it() -> None:
    sends, pending = Sends(Sent(True)), []
    calls = SimpleNamespace(start=lambda call, then, failed: pending.append(lambda: then(call())))
    sends.sends = SnapshotSends(calls, lambda: 0.0)  # type: ignore[arg-type]
    sends.sends.make = lambda: sends  # type: ignore[assignment,return-value]
    assert not sends.is_settled(ONE) and not sends.is_settled(ONE)
    assert sends.reports == ["SendingFiles: its files are being copied to the cluster"]
    sends.shown = "48 MB (37 %)"
    assert not sends.is_settled(TWO) and len(sends.reports) == 1
    assert not sends.is_settled(ONE)
    assert sends.reports[1:] == ["SendingFiles: 48 MB (37 %) of its files have been copied to the cluster"]
    pending.pop()()
    assert sends.is_settled(ONE) and not pending


@pytest.mark.parametrize(
    ("shown", "progress"),
    [
        (b"", ""),
        (b"sending incremental file list\n", ""),
        (b"\r         32,768   0%    0.00kB/s    0:00:00  ", "0 MB (0 %)"),
        (b"\r  1,000,000   2% 1MB/s 0:00:09  \r     48,300,123  37%  9.35MB/s    0:00:08  ", "48 MB (37 %)"),
    ],
)
def test_progress_is_the_last_that_rsync_has_shown(shown: bytes, progress: str) -> None:
    assert parse_progress(shown) == progress
