"""A database of every schema, as the gflow of its time left it, opens and goes on.

`schemas/schema-NN.sql` are dumps of databases that the last gflow of each schema made with the same jobs:
some on GPUs that ended, failed or were retried, arrays, one that runs, and some that wait or are held.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gflow.core.invariants import check
from gflow.core.lifecycle.admin import QUOTAS, RESERVATIONS
from gflow.core.model import JobState
from gflow.core.policy import DRAINED, Policy
from gflow.core.state.eta_calibration import ETA_CALIBRATION
from gflow.core.state.fair_share import FAIR_SHARE
from gflow.core.state.state import State
from gflow.daemon.loop.stored_state import reload
from gflow.errors import StoreError
from gflow.store import ownership
from gflow.store.open import VERSION
from gflow.store.port import Changes
from gflow.store.sqlite import SqliteStore
from tests.store.disk import is_whole

DUMPS = sorted(Path(__file__).with_name("schemas").glob("*.sql"))
PRIVATE = ownership.private(0)


def build(dump: Path, path: Path) -> bytes:
    """The database of a dump; its bytes."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(dump.read_text())
        db.execute("PRAGMA journal_mode = WAL")
    return path.read_bytes()


def state_of(store: SqliteStore) -> State:
    return reload(State(cpus=4, memory_mib=1000, policy=Policy(owner=0)), store)


def test_every_schema_has_a_dump() -> None:
    assert [int(path.stem.rpartition("-")[2]) for path in DUMPS] == list(range(1, VERSION + 1))


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.stem)
def test_a_database_of_every_schema_opens_with_all_its_jobs(dump: Path, tmp_path: Path) -> None:
    path = tmp_path / "gflow.db"
    build(dump, path)
    with closing(SqliteStore(path, PRIVATE, state_of)) as store:
        state = state_of(store)
        check(state, settled=False)
        everything = list(store.jobs(active=False))
        assert is_whole(store._db)
        (running,) = state.running.values()
        assert running.name == "long" and running.gpu_ids == (0, 1, 2, 3)
        assert {job.state for job in everything} >= {JobState.FINISHED, JobState.FAILED, JobState.QUEUED}
        assert store.blob(running.spec.environ).startswith(b"PATH=")
        if FAIR_SHARE in store.load().meta:
            assert state.accounting.fair_share.uses[0].seconds > 0.5, "what was used is forgotten"
        store.commit(Changes(meta={"next_number": state.jobs.next_number}))
    with closing(SqliteStore(path, PRIVATE)) as store:
        assert store.meta_value("kind") == PRIVATE


@pytest.mark.parametrize("dump", DUMPS[:-1], ids=lambda path: path.stem)
def test_a_migration_leaves_a_backup_that_the_old_version_opens(dump: Path, tmp_path: Path) -> None:
    path = tmp_path / "gflow.db"
    build(dump, path)
    with closing(sqlite3.connect(path)) as db:
        before = list(db.iterdump())
    SqliteStore(path, PRIVATE).close()
    (kept,) = tmp_path.glob("gflow.db.before-schema-*")
    assert kept.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(kept)) as db:
        assert list(db.iterdump()) == before
        assert db.execute("PRAGMA user_version").fetchone()[0] == int(dump.stem.rpartition("-")[2])


def test_unreadable_migration_leaves_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "gflow.db"
    build(DUMPS[6], path)

    def fails(store: SqliteStore) -> None:
        raise KeyError("a word of an old daemon")

    with pytest.raises(StoreError, match="schema 7 cannot be read"):
        SqliteStore(path, PRIVATE, fails)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == 7
        assert not db.execute("SELECT 1 FROM pragma_table_info('jobs') WHERE name = 'headway'").fetchall()
    with closing(SqliteStore(path, PRIVATE, state_of)) as store:
        assert len(state_of(store).jobs) > 3


@pytest.mark.parametrize("name", [FAIR_SHARE, ETA_CALIBRATION])
def test_unreadable_counters_are_reset_with_a_warning(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(SqliteStore(tmp_path / "gflow.db")) as store:
        store.commit(Changes(meta={name: "[[["}))
        with caplog.at_level(logging.WARNING):
            state_of(store)
    assert name in caplog.text and "starts from zero" in caplog.text


@pytest.mark.parametrize("name", [DRAINED, QUOTAS, RESERVATIONS, "gpu_faults"])
def test_a_decision_that_cannot_be_read_is_a_damaged_database(name: str, tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "gflow.db")) as store:
        store.commit(Changes(meta={name: "[[["}))
        with pytest.raises(StoreError, match=f"{name}.*damaged"):
            state_of(store)
