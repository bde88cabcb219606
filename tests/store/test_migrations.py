"""Migrations of old databases: complete or not at all."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest

from gflow.core.ids import job_key
from gflow.core.model import JobState, Spec
from gflow.errors import StoreError
from gflow.store import open
from gflow.store.port import Changes, address_of
from gflow.store.schema import APPLICATION_ID, MIGRATIONS, VERSION
from gflow.store.sqlite import SqliteStore
from tests.store.disk import FAULTS, Disk, Life, is_whole, operations, order, spread
from tests.store.script import TABLES, contents

NOON = 1_750_000_000.0
TEXT = b"PATH=/bin\0HOME=/home/ann"
SPEC = msgspec.json.encode(Spec(command=("train",), cwd="/work", gpus=1, environ=address_of(TEXT))).decode()
# key, uid, user, state, reason, attempt, gpu_ids, submitted, started, boot, finished, code, signal, stopping
OLD_JOBS = [
    (1, 1000, "ann", "Finished", "", 1, "0", NOON, NOON, 1.0, NOON + 5, 0, None, None),
    (2, 1000, "ann", "Failed", "ExitCode:3", 2, "1", NOON, NOON, 1.0, NOON + 5, 3, None, None),
    (3, 1001, "bob", "Cancelled", "CancelledByUser", 0, "", NOON, None, None, NOON + 5, None, None, None),
    (4, 1001, "bob", "Timeout", "TimeLimit", 1, "0", NOON, NOON, 1.0, NOON + 5, None, 15, None),
    (5, 1000, "ann", "Running", "", 1, "0,1", NOON, NOON, 1.0, None, None, None, None),
    (6, 1000, "ann", "Running", "", 1, "2", NOON, NOON, 1.0, None, None, None, "Cancelled"),
    (7, 1001, "bob", "Queued", "", 0, "", NOON, None, None, None, None, None, None),
    (8, 1001, "bob", "Hold", "JobHeldUser", 0, "", NOON, None, None, None, None, None, None),
]


def build_old(path: Path, version: int = 1) -> None:
    """A database as an older gflow left it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript("".join(MIGRATIONS[:version]))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("BEGIN")
        columns = (
            "key, uid, user, state, reason, attempt, gpu_ids, submitted_at, started_at, started_boot, "
            "finished_at, exit_code, signal, stopping, target, spec"
        )
        marks = ", ".join("?" * 16)
        for number, *rest in OLD_JOBS:
            db.execute(
                f"INSERT INTO jobs ({columns}) VALUES ({marks})", (job_key(number), *rest, "local", SPEC)
            )
            token = (rest[0], f"token-{number}", job_key(number), 1, NOON)
            db.execute("INSERT INTO submissions (uid, token, first, count, at) VALUES (?, ?, ?, ?, ?)", token)
        if version == 1:
            holds = [(0, job_key(5)), (1, job_key(5)), (2, job_key(6))]
            db.executemany("INSERT INTO holds (gpu, key) VALUES (?, ?)", holds)
        db.execute("INSERT INTO blobs (hash, bytes) VALUES (?, ?)", (address_of(TEXT), TEXT))
        db.execute("INSERT INTO meta (name, value) VALUES ('next_number', 9)")
        db.execute("COMMIT")


def schema(path: Path) -> dict[tuple[str, str], str]:
    """Every table, index and trigger, with its text made comparable."""
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    return {(kind, name): re.sub(r"\s+", " ", sql.replace('"', "")) for kind, name, sql in found}


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


# ---------------------------------------------------------------- forward


def test_an_old_database_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "gflow.db"
    build_old(path)
    with closing(SqliteStore(path)) as store:
        found = {job.number: job for job in store.jobs(active=False)}
        loaded = store.load()
        held = store._db.execute("SELECT gpu, key, memory_mib FROM holds ORDER BY gpu").fetchall()
        assert store.blob(address_of(TEXT)) == TEXT
        assert store.submission(1001, "token-7") == (job_key(7),)
        assert is_whole(store._db)
    assert len(found) == len(OLD_JOBS)
    for number, uid, user, state, reason, attempt, gpu_ids, *_, code, signal, stopping in OLD_JOBS:
        job = found[number]
        assert (job.uid, job.user, job.state.value, str(job.reason)) == (uid, user, state, reason)
        assert (job.attempt, job.exit_code, job.signal) == (attempt, code, signal)
        assert ",".join(map(str, job.gpu_ids)) == gpu_ids
        assert (job.stopping and job.stopping.value) == stopping
        assert (job.retries, job.quick_ends, job.progress) == (0, 0, None)
        assert (job.cpu_ms, job.peak_kib) == (0, 0)
        assert job.spec == msgspec.json.decode(SPEC, type=Spec)
    assert held == [(0, job_key(5), 0), (1, job_key(5), 0), (2, job_key(6), 0)]
    assert loaded.next_number == 9
    assert [job.number for job in loaded.jobs] == [5, 6, 7, 8]


def test_an_old_job_goes_on_as_a_new_one(tmp_path: Path) -> None:
    """The triggers and checks of today hold for rows of yesterday."""
    path = tmp_path / "gflow.db"
    build_old(path)
    with closing(SqliteStore(path)) as store:
        job = store.job(job_key(5))
        assert job is not None
        job.state, job.finished_at, job.exit_code = JobState.FINISHED, NOON + 9, 0
        store.commit(Changes(jobs={job.key: job}))
        assert store._db.execute("SELECT gpu FROM holds").fetchall() == [(2,)]
        job.exit_code = 1
        with pytest.raises(StoreError, match="final job"):
            store.commit(Changes(jobs={job.key: job}))


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_old_database_ends_up_exactly_like_a_new_one(tmp_path: Path, version: int) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    build_old(old, version)
    SqliteStore(new).close()
    assert schema(old) != schema(new)
    SqliteStore(old).close()
    assert schema(old) == schema(new)
    assert version_of(old) == version_of(new) == VERSION


def test_earlier_attempts_are_read_out_of_the_audit(tmp_path: Path) -> None:
    path = tmp_path / "gflow.db"
    build_old(path, 6)
    history = [
        (0, 2, "started", "attempt 1 on GPU 0,1"),
        (1, 7, "started", "attempt 1"),
        (2, 2, "retry", "after attempt 1: ExitCode:1"),
        (3, 2, "started", "attempt 2 on GPU 1"),
        (4, 7, "leased", "after attempt 1: Leased"),
        (5, 2, "failed", "ExitCode:3"),
    ]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE jobs SET attempt = 1 WHERE key = ?", (job_key(7),))
        db.executemany(
            "INSERT INTO audit (at, key, origin, what, detail) VALUES (?, ?, 'daemon', ?, ?)",
            [(NOON + at, job_key(number), what, detail) for at, number, what, detail in history],
        )
    SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM attempts").fetchall() == [
            (job_key(2), 1, NOON, NOON + 2, "0,1", 2.0)
        ]


def test_run_times_of_old_jobs_are_those_of_the_wall_clock(tmp_path: Path) -> None:
    path = tmp_path / "gflow.db"
    build_old(path, 10)
    store = SqliteStore(path)
    try:
        ran = [job.ran_s for job in store.jobs(active=False)]
        assert ran == [5.0, 5.0, None, 5.0, None, None, None, None]
        runs = [job for job in store.jobs(active=True) if job.started_at is not None]
        assert [job.started_boot for job in runs] == [NOON, NOON], "on the clock that goes on after a reboot"
        assert store.latest_boot() == NOON
    finally:
        store.close()


def test_the_newest_schema_is_the_one_of_the_tables_we_know(tmp_path: Path) -> None:
    path = tmp_path / "gflow.db"
    SqliteStore(path).close()
    assert {name for kind, name in schema(path) if kind == "table"} == set(TABLES)


def test_a_current_database_is_not_migrated_again(tmp_path: Path) -> None:
    path = tmp_path / "gflow.db"
    SqliteStore(path).close()
    before = path.read_bytes()
    SqliteStore(path).close()
    assert path.read_bytes() == before


# ---------------------------------------------------------------- or not at all


def test_a_migration_that_fails_in_the_middle_leaves_the_old_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gflow.db"
    build_old(path)
    before = schema(path)
    real = open.script_from

    def broken(version: int) -> str:
        return real(version) + "INSERT INTO no_such_table VALUES (1);"

    monkeypatch.setattr(open, "script_from", broken)
    with pytest.raises(StoreError, match="no_such_table"):
        SqliteStore(path)
    assert schema(path) == before
    assert version_of(path) == 1
    monkeypatch.undo()
    with closing(SqliteStore(path)) as store:
        assert len(list(store.jobs(active=False))) == len(OLD_JOBS)


def judge(life: Life, before: dict[tuple[str, str], str], after: str) -> str:
    path = life.folder / "gflow.db"
    version = version_of(path)
    assert version in (1, VERSION)
    with closing(sqlite3.connect(path)) as db:
        assert is_whole(db)
    if version == 1:
        assert schema(path) == before, "half a migration"
    with closing(SqliteStore(path)) as store:
        assert contents(store._db) == after
    return f"version {version}" if life.code else "migrated at last" if life.refused else "migrated"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_middle_of_a_migration(disk: Disk, tmp_path: Path, fault: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    build_old(source / "gflow.db")
    before = schema(source / "gflow.db")
    life = disk.live({"mode": "none", "at": 0, "what": "open"}, source)
    with closing(SqliteStore(life.folder / "gflow.db")) as store:
        after = contents(store._db)
    count = sum(operations(life).values())
    assert count > 20, operations(life)
    orders = [order(fault, at) | {"what": "open"} for at in spread(count, 20)]
    verdicts = disk.live_all(orders, partial(judge, before=before, after=after), source)
    print("migration,", fault, dict(verdicts))
