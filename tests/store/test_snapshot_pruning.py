"""Which snapshots of projects are deleted, by the jobs in the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gflow.core.model import Job, JobState
from gflow.daemon.monitors.snapshot_pruning import prune, used_snapshots
from gflow.store.port import Changes
from gflow.store.sqlite import SqliteStore
from gflow.targets.slurm.files import local_snapshots
from gflow.targets.slurm.files.local_snapshots import LocalSnapshots, parse_id
from tests.store.script import job, open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gflow.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = open_store(path)
    yield made
    made.close()


class FakeCluster:
    """Notes what was asked, and keeps some snapshots; None: it does not answer."""

    def __init__(self, kept: set[str] | None) -> None:
        self.kept, self.used = kept, set[str]()

    def prune_snapshots(self, used: set[str]) -> set[str] | None:
        self.used = used
        return self.kept


def save(store: SqliteStore, number: int, snapshot: str, state: JobState = JobState.QUEUED) -> None:
    made: Job = job(number, state)
    made.spec = msgspec.structs.replace(made.spec, snapshot=snapshot, sync="/work")
    store.commit(Changes(jobs={made.key: made}))


def test_only_unfinished_jobs_use_snapshots(store: SqliteStore, path: Path) -> None:
    save(store, 1, "p/20261118-144132-0001.aa")
    save(store, 2, "p/20261118-144132-0002.aa", JobState.FINISHED)
    save(store, 3, "")
    assert used_snapshots(path) == {"p/20261118-144132-0001.aa"}


@pytest.mark.parametrize("answers", [True, False])
def test_snapshots_of_ended_jobs_are_deleted_here_and_there(
    store: SqliteStore, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    root = tmp_path / "proj"
    root.mkdir()
    snapshots, ids = LocalSnapshots(tmp_path / "snapshots"), []
    for turn in range(4):
        (root / "a").write_text("x" * turn + "y")
        ids.append(snapshots.take(str(root), 0).id)
        save(store, turn + 1, ids[-1], JobState.QUEUED if turn == 1 else JobState.FINISHED)
    monkeypatch.setattr(local_snapshots, "YOUNG_S", -1.0)
    cluster = FakeCluster({ids[2]} if answers else None)
    prune(path, snapshots, [cluster])
    assert cluster.used == {ids[1]}
    parsed = [parse_id(id) for id in ids]
    assert [snapshots.path(one).exists() for one in parsed] == [False, True, False, True]
    again = LocalSnapshots(tmp_path / "snapshots")
    indexes = [bool(again.read_index(one.project, one.tree)) for one in parsed]
    assert indexes == ([False, True, True, True] if answers else [True] * 4)
