"""A database belongs to one daemon, the machine's or a user's own, and the others refuse it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gflow.errors import Refused
from gflow.store.backup import back_up, restore
from gflow.store.ownership import SYSTEM, private
from gflow.store.port import Changes
from gflow.store.sqlite import SqliteStore
from tests.store.script import job

ANN, BOB = private(1000), private(1001)


def made(path: Path, kind: str | None, *uids: int) -> Path:
    """A database with a waiting job of each of these users."""
    with closing(SqliteStore(path, kind)) as store:
        jobs = [job(number, uid=uid) for number, uid in enumerate(uids, 1)]
        store.commit(Changes(jobs={one.key: one for one in jobs}, new={one.key for one in jobs}))
    return path


@pytest.mark.parametrize(("made_by", "opened_by"), [(SYSTEM, ANN), (ANN, SYSTEM), (ANN, BOB)])
def test_a_database_of_another_daemon_is_refused_and_not_touched(
    made_by: str, opened_by: str, tmp_path: Path
) -> None:
    path = made(tmp_path / "gflow.db", made_by, 1000)
    before = path.read_bytes()
    with pytest.raises(Refused, match="belongs to"):
        SqliteStore(path, opened_by)
    assert path.read_bytes() == before
    SqliteStore(path, made_by).close()


def test_unmarked_database_with_foreign_jobs_is_system(tmp_path: Path) -> None:
    path = made(tmp_path / "gflow.db", None, 1000, 1001)
    with pytest.raises(Refused, match="system daemon"):
        SqliteStore(path, ANN)
    with pytest.raises(Refused, match="system daemon"):
        SqliteStore(path, private(0))
    with closing(SqliteStore(path, SYSTEM)) as store:
        assert store.meta_value("kind") == SYSTEM


def test_unmarked_database_is_claimed_by_opener(tmp_path: Path) -> None:
    path = made(tmp_path / "gflow.db", None, 1000)
    SqliteStore(path, ANN).close()
    with pytest.raises(Refused):
        SqliteStore(path, SYSTEM)


def test_foreign_waiting_job_in_own_database_is_refused(tmp_path: Path) -> None:
    """However it got there: a private daemon would run it as its own user."""
    path = made(tmp_path / "gflow.db", ANN, 1000, 0)
    with pytest.raises(Refused, match=r"job 2 .* belongs to uid 0"):
        SqliteStore(path, ANN)


@pytest.mark.parametrize(("made_by", "restored_by"), [(SYSTEM, ANN), (ANN, SYSTEM), (None, BOB)])
def test_a_backup_of_another_daemon_is_not_restored(
    made_by: str | None, restored_by: str, tmp_path: Path
) -> None:
    back_up(made(tmp_path / "theirs.db", made_by, 1000), tmp_path / "backup.db")
    ours = made(tmp_path / "gflow.db", restored_by)
    before = ours.read_bytes()
    with pytest.raises(Refused, match="belongs to"):
        restore(tmp_path / "backup.db", ours, 1, restored_by)
    assert ours.read_bytes() == before


def test_unmarked_backup_belongs_to_restoring_daemon(tmp_path: Path) -> None:
    back_up(made(tmp_path / "old.db", None, 1000, 1001), tmp_path / "backup.db")
    restore(tmp_path / "backup.db", tmp_path / "gflow.db", 1, SYSTEM)
    with pytest.raises(Refused, match="system daemon"):
        SqliteStore(tmp_path / "gflow.db", ANN)
