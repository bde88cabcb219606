"""Backups, restores, and what is thrown away in time."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gflow.config.load import load
from gflow.core.ids import job_key
from gflow.core.model import ArrayProgress, AuditEntry, Job, JobState, Spec
from gflow.core.queries.usage_report import Question
from gflow.core.task_set import parse_tasks
from gflow.daemon.monitors import maintenance
from gflow.daemon.settings import Settings
from gflow.errors import StoreError
from gflow.store import backup as keeping
from gflow.store import files, statistics
from gflow.store.backup import (
    BACKUPS_KEPT,
    DAY_S,
    Retention,
    apply_retention,
    back_up,
    back_up_daily,
    delete_unrun_texts,
    kept_bytes,
    restore,
)
from gflow.store.port import Changes, Submission, address_of
from gflow.store.rows import kept_size
from gflow.store.sqlite import SqliteStore
from tests.harness import Box
from tests.store.disk import FAULTS, Disk, Life, is_whole, operations, order, spread
from tests.store.script import NOON, UID, contents, environment, job, open_store, plan, submitted

NOW = NOON + 1000 * DAY_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gflow.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as opened:
        yield opened


def look(path: Path) -> str:
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as db:
        assert is_whole(db)
        return contents(db)


# ---------------------------------------------------------------- backup


def test_a_backup_is_whole_private_and_a_single_file(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    for changes in plan():
        store.commit(changes)
    made = back_up(path, tmp_path / "backups" / "one.db")
    assert look(made) == contents(store._db)
    assert made.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in made.parent.iterdir()] == ["one.db"]
    assert made.parent.stat().st_mode & 0o777 == 0o700


def test_a_backup_of_a_database_in_use_is_one_of_its_states(path: Path, tmp_path: Path) -> None:
    """A writer commits all the time: every commit makes two changes that belong together."""
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with closing(SqliteStore(path)) as store:
            for number in range(1, 100_000):
                if stop.is_set():
                    return
                store.commit(submitted(number))
                written = number

    SqliteStore(path).close()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        while written < 30:
            time.sleep(0.01)
        for i in range(5):
            earlier = written
            made = back_up(path, tmp_path / f"{i}.db")
            with closing(sqlite3.connect(made)) as db:
                assert is_whole(db)
                (jobs,) = db.execute("SELECT count(*) FROM jobs").fetchone()
                (tokens,) = db.execute("SELECT count(*) FROM submissions").fetchone()
                (number,) = db.execute("SELECT value FROM meta WHERE name = 'next_number'").fetchone()
            assert earlier <= jobs == tokens == number - 1, "a mixture of states, or too old a one"
    finally:
        stop.set()
        writer.join()


def test_a_busy_daemon_does_not_hold_up_a_backup(path: Path, tmp_path: Path) -> None:
    """A backup in steps restarts at every commit, and with a busy daemon never ends."""
    with closing(SqliteStore(path)) as store:
        store.commit(Changes(blobs={address_of(bytes([i])): os.urandom(60_000) for i in range(200)}))
        assert path.stat().st_size + path.with_name("gflow.db-wal").stat().st_size > 2000 * 4096
    stop = threading.Event()

    def write() -> None:
        with closing(SqliteStore(path)) as store:
            number = 0
            while not stop.is_set():
                number += 1
                store.commit(Changes(meta={"next_number": number}))

    writer = threading.Thread(target=write)
    done = threading.Event()

    def copy() -> None:
        back_up(path, tmp_path / "copy.db")
        done.set()

    writer.start()
    copier = threading.Thread(target=copy, daemon=True)
    copier.start()
    ended = done.wait(20)
    stop.set()
    writer.join()
    copier.join(20)
    assert ended, "the backup did not end while a client wrote"


def test_missing_database_is_not_backed_up(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="could not be backed up"):
        back_up(path, tmp_path / "backups" / "one.db")
    assert not path.exists()
    assert list((tmp_path / "backups").iterdir()) == []


def test_a_failed_backup_leaves_the_last_one(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    store.commit(submitted(1))
    made = back_up(path, tmp_path / "one.db")
    before = made.read_bytes()
    with pytest.raises(StoreError):
        back_up(tmp_path / "no such", made)
    assert made.read_bytes() == before
    assert sorted(file.name for file in tmp_path.glob("one*")) == ["one.db"]


def test_a_week_of_backups_is_kept(
    store: SqliteStore, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backups"
    for day in range(BACKUPS_KEPT + 3):
        stamp = f"gflow-202601{day + 1:02}-030000.db"
        monkeypatch.setattr(keeping.time, "strftime", lambda _, stamp=stamp: stamp)
        store.commit(submitted(day + 1))
        back_up_daily(path, folder)
    (folder / "mine.db").write_text("a file of the user")
    monkeypatch.setattr(keeping.time, "strftime", lambda _: "gflow-20260130-030000.db")
    back_up_daily(path, folder)
    kept = sorted(file.name for file in folder.glob("gflow-*"))
    assert len(kept) == BACKUPS_KEPT
    assert kept[-1] == "gflow-20260130-030000.db"
    assert (folder / "mine.db").exists()
    assert look(folder / kept[-1]) == contents(store._db)


def test_a_backup_is_due_once_a_day(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    assert keeping.is_backup_due(folder, time.time())
    back_up_daily(path, folder)
    assert not keeping.is_backup_due(folder, time.time() + DAY_S / 2)
    assert keeping.is_backup_due(folder, time.time() + DAY_S + 60)


def test_gflowd_backup_of_a_running_daemon(daemon: Box) -> None:
    job = daemon.submit("true")
    daemon.finished(job)
    made = Path(daemon.ok("gflowd", "backup").strip())
    assert made.parent == daemon.data / "backups"
    with closing(sqlite3.connect(made)) as db:
        assert is_whole(db)
        assert db.execute("SELECT state FROM jobs").fetchall() == [("Finished",)]


# ---------------------------------------------------------------- restore


def test_a_restore_gives_no_number_out_twice(path: Path, tmp_path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        for number in (1, 2, 3):
            store.commit(submitted(number))
        back_up(path, tmp_path / "backup.db")
        for number in (4, 5, 6):
            store.commit(submitted(number))
    kept = restore(tmp_path / "backup.db", path, first_free_number=1)
    with closing(SqliteStore(path)) as store:
        assert [job.number for job in store.jobs(active=False)] == [1, 2, 3]
        assert store.load().next_number == 7, "the old database knew of jobs 4 to 6"
    assert kept is not None and kept.exists()
    restore(tmp_path / "backup.db", path, first_free_number=50)
    with closing(SqliteStore(path)) as store:
        assert store.load().next_number == 50, "logs and run records knew of more"


def test_replaced_database_can_be_restored(path: Path, tmp_path: Path) -> None:
    """Also when its last commits are in its log only."""
    elsewhere = tmp_path / "elsewhere" / "gflow.db"
    with closing(SqliteStore(path)) as store:
        store.commit(submitted(1))
        back_up(path, tmp_path / "backup.db")
        store.commit(submitted(2))
        elsewhere.parent.mkdir()
        for end in ("", "-wal"):
            shutil.copyfile(f"{path}{end}", f"{elsewhere}{end}")
    kept = restore(tmp_path / "backup.db", elsewhere, 1)
    assert kept is not None
    restore(kept, elsewhere, 1)
    with closing(SqliteStore(elsewhere)) as store:
        assert [job.number for job in store.jobs(active=False)] == [1, 2]


def test_restores_in_one_second_keep_everything(path: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    with closing(SqliteStore(path)) as store:
        store.commit(submitted(1))
        back_up(path, backup)
    kept = []
    for number in range(2, 6):
        with closing(SqliteStore(path)) as store:
            store.commit(submitted(number))
        kept.append(restore(backup, path, 1))
    assert len(set(kept)) == 4
    for number, old in enumerate(kept, 2):
        assert old is not None
        with closing(sqlite3.connect(old)) as db:
            assert db.execute("SELECT max(key >> 20) FROM jobs").fetchone() == (number,)


@pytest.mark.parametrize("damage", ["missing", "text", "truncated"])
def test_a_bad_backup_is_refused_and_the_database_stays(path: Path, tmp_path: Path, damage: str) -> None:
    backup = tmp_path / "backup.db"
    with closing(SqliteStore(path)) as store:
        store.commit(submitted(1))
        back_up(path, backup)
        if damage == "missing":
            backup.unlink()
        elif damage == "text":
            backup.write_text("no backup")
        else:
            os.truncate(backup, backup.stat().st_size // 2)
        with pytest.raises(StoreError, match=r"backup\.db"):
            restore(backup, path, 1)
    assert sorted(file.name for file in tmp_path.iterdir() if file != backup) == ["gflow.db"]
    with closing(SqliteStore(path)) as store:
        assert store.job(job_key(1)) is not None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_middle_of_a_restore(disk: Disk, tmp_path: Path, fault: str) -> None:
    """The old database with its log, or the restored one; never one's log beside the other."""
    source = tmp_path / "source"
    source.mkdir()
    path = source / "gflow.db"
    with closing(open_store(tmp_path / "gflow.db")) as store:
        store._db.execute("PRAGMA wal_autocheckpoint = 0")
        for changes in plan()[:6]:
            store.commit(changes)
        back_up(tmp_path / "gflow.db", source / "backup.db")
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for changes in plan()[6:10]:
            store.commit(changes)
        old = contents(store._db)
        for end in ("", "-wal"):
            shutil.copyfile(f"{tmp_path / 'gflow.db'}{end}", f"{path}{end}")
    life = disk.live({"mode": "none", "at": 0, "what": "restore"}, source)
    with closing(open_store(life.folder / "gflow.db")) as store:
        new = contents(store._db)
    assert old != new

    def judge(life: Life) -> str:
        with closing(open_store(life.folder / "gflow.db")) as store:
            assert is_whole(store._db)
            found = contents(store._db)
        assert found in (old, new), "a mixture"
        said = {words[0] for words in life.said}
        assert found == new or not {"restored"} & said, "said to be restored, and is not"
        outcome = "new" if found == new else "old"
        return f"at last {outcome}" if life.refused and not life.code else outcome

    count = sum(operations(life).values())
    assert count > 20
    orders = [order(fault, at) | {"what": "restore"} for at in spread(count, 24)]
    verdicts = disk.live_all(orders, judge, source)
    print("restore,", fault, dict(verdicts))


# ---------------------------------------------------------------- retention


def old(number: int, days: float, **fields: object) -> Job:
    """A job that finished so many days ago."""
    return job(number, JobState.FINISHED, finished_at=NOW - days * DAY_S, **fields)


def waiting(number: int, **fields: object) -> Job:
    made = job(number)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, **fields))


def save(store: SqliteStore, *jobs: Job, texts: bool = True) -> None:
    blobs = {made.spec.environ: environment(made.number) for made in jobs} if texts else {}
    store.commit(Changes(jobs={made.key: made for made in jobs}, blobs=blobs))


def numbers(store: SqliteStore) -> list[int]:
    return [found.number for found in store.jobs(active=False)]


def texts(store: SqliteStore) -> set[str]:
    return {address for (address,) in store._db.execute("SELECT hash FROM blobs")}


def test_old_jobs_are_deleted_and_counted(store: SqliteStore, path: Path) -> None:
    save(store, *(old(number, 400) for number in range(1, 6)), old(6, 300), job(7))
    assert apply_retention(path, Retention(), NOW) == 5
    assert numbers(store) == [6, 7]
    assert apply_retention(path, Retention(), NOW) == 0
    assert is_whole(store._db)


def test_retention_that_finds_nothing_takes_no_lock(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit(Changes(audit=[AuditEntry(NOW, None, None, "daemon", "started", "")]))
    save(store, job(1))
    connect = files.connect

    def impatient(database: Path, how: str = "mode=rw") -> sqlite3.Connection:
        db = connect(database, how)
        db.execute("PRAGMA busy_timeout = 0")
        return db

    monkeypatch.setattr(files, "connect", impatient)
    with closing(connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert apply_retention(path, Retention(), NOW) == 0


def test_many_old_jobs_go_in_many_steps(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "CHUNK", 7)
    save(store, *(old(number, 400) for number in range(1, 31)), waiting(40, depends_on=(job_key(12),)))
    lines = [AuditEntry(NOW - 400 * DAY_S, None, 0, "", "x", "") for _ in range(30)]
    tokens = [Submission(1, f"t{i}", (job_key(1),), NOW - 8 * DAY_S) for i in range(30)]
    store.commit(Changes(audit=lines, submissions=tokens))
    assert apply_retention(path, Retention(), NOW) == 29
    assert numbers(store) == [12, 40]
    assert texts(store) == {job(40).spec.environ}
    assert store._db.execute("SELECT count(*) FROM audit").fetchone() == (0,)
    assert store._db.execute("SELECT count(*) FROM submissions").fetchone() == (0,)


@pytest.mark.parametrize("field", ["depends_on", "depends_any"])
@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.HOLD, JobState.RUNNING])
def test_a_job_that_an_active_one_depends_on_stays(
    store: SqliteStore, path: Path, field: str, state: JobState
) -> None:
    child = waiting(9, **{field: (job_key(1), job_key(2, 4))})
    if state is not JobState.QUEUED:
        child.state = state
    if state is JobState.RUNNING:
        child.attempt, child.started_at = 1, NOW
    task = msgspec.structs.replace(old(2, 900), key=job_key(2, 4))
    save(store, old(1, 900), old(2, 900), task, old(3, 900), child)
    assert apply_retention(path, Retention(), NOW) == 1
    assert [found.label for found in store.jobs(active=False)] == ["1", "2", "2_4", "9"]
    assert store.load().outcomes == {job_key(1): JobState.FINISHED, job_key(2, 4): JobState.FINISHED}


def test_a_job_that_only_final_ones_depended_on_goes(store: SqliteStore, path: Path) -> None:
    child = waiting(2, depends_on=(job_key(1),))
    child.state, child.finished_at = JobState.CANCELLED, NOW - DAY_S
    save(store, old(1, 900), child)
    assert apply_retention(path, Retention(), NOW) == 1
    assert numbers(store) == [2]


def test_a_dependency_that_comes_during_the_run_is_seen(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is submitted, and another updated, between the look at old jobs and their deletion."""
    save(store, *(old(number, 900) for number in range(1, 5)), waiting(8))
    real = keeping._transaction
    came = []

    def late(db: sqlite3.Connection) -> object:
        if not came:
            came.append(True)
            save(store, waiting(9, depends_on=(job_key(2),)), waiting(8, depends_any=(job_key(3),)))
        return real(db)

    monkeypatch.setattr(keeping, "_transaction", late)
    assert apply_retention(path, Retention(), NOW) == 2
    assert numbers(store) == [2, 3, 8, 9]


def test_unreferenced_texts_are_deleted(store: SqliteStore, path: Path) -> None:
    save(store, old(1, 40), old(2, 20), job(3), job(4, JobState.RUNNING, (0,)))
    script = b"#!/bin/sh\n"
    scripted = waiting(5, script=address_of(script), environ="")
    save(store, scripted, texts=False)
    stray = b"unreferenced"
    store.commit(Changes(blobs={address_of(script): script, address_of(stray): stray}))
    apply_retention(path, Retention(), NOW)
    assert texts(store) == {job(n).spec.environ for n in (2, 3, 4)} | {address_of(script)}
    assert numbers(store) == [1, 2, 3, 4, 5], "their jobs stay"


def test_a_text_that_an_old_and_a_waiting_job_share_stays(store: SqliteStore, path: Path) -> None:
    shared = old(1, 100).spec.environ
    save(store, old(1, 100))
    save(store, waiting(2, environ=shared), texts=False)
    apply_retention(path, Retention(), NOW)
    assert texts(store) == {shared}


def test_a_text_submitted_during_the_run_stays(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long look has been; then a job comes that needs a text that no job needed before."""
    save(store, old(1, 100), old(2, 100))
    address = old(1, 100).spec.environ
    real = keeping._transaction

    def late(db: sqlite3.Connection) -> object:
        late_job = waiting(9, environ=address)
        if late_job.key not in {found.key for found in store.jobs(active=False)}:
            # As a submission does it: the text is there already, so it is not written again.
            save(store, late_job, texts=False)
        return real(db)

    monkeypatch.setattr(keeping, "_transaction", late)
    apply_retention(path, Retention(), NOW)
    assert texts(store) == {address}
    assert store.blob(address)


def cancelled(number: int, hours: float, **fields: object) -> Job:
    """A job that was cancelled so many hours ago, before it ran."""
    return job(
        number, JobState.CANCELLED, finished_at=NOW - hours * 3600, attempt=0, started_at=None, **fields
    )


def test_texts_of_cancelled_jobs_that_never_ran_go_after_an_hour(store: SqliteStore, path: Path) -> None:
    cut_off = cancelled(3, 2, reason="DependencyFailed: 1")  # gjob redo --cascade needs it
    running = job(6, JobState.RUNNING, (0,))
    save(store, cancelled(1, 2), cancelled(2, 0.5), cut_off, old(4, 1), job(5), running)
    delete_unrun_texts(path, Retention(), NOW, NOW - 1800)
    assert len(texts(store)) == 6, "that was done half an hour ago"
    delete_unrun_texts(path, Retention(), NOW, NOW - 7200)
    assert texts(store) == {job(n).spec.environ for n in (2, 3, 4, 5, 6)}
    assert len(numbers(store)) == 6, "their jobs stay"


def test_text_that_an_update_brings_during_the_run_stays(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, job(1), old(2, 100))
    script = b"#!/bin/sh\n"
    real = keeping._transaction

    def late(db: sqlite3.Connection) -> object:
        changed = waiting(1, script=address_of(script))
        store.commit(Changes(jobs={changed.key: changed}, blobs={address_of(script): script}))
        return real(db)

    monkeypatch.setattr(keeping, "_transaction", late)
    apply_retention(path, Retention(), NOW)
    assert texts(store) == {job(1).spec.environ, address_of(script)}


def test_kept_bytes_are_counted_once_for_each_person(store: SqliteStore, path: Path) -> None:
    shared = job(1).spec.environ
    save(store, job(1), old(4, 5), old(5, 100))
    save(store, waiting(2, environ=shared), texts=False)
    bobs = waiting(3, environ=shared)
    bobs.uid, bobs.user = 1001, "bob"
    save(store, bobs, texts=False)
    size = {number: len(environment(number)) for number in (1, 4, 5)}
    assert kept_bytes(path, Retention(), NOW) == {UID: size[1] + size[4], 1001: size[1]}


def test_kept_bytes_have_what_specs_are_longer_than_usual(store: SqliteStore, path: Path) -> None:
    """Of each job, for its record has its own; and of tasks that have none yet."""
    long = Spec(command=("true", "é" * 2000), cwd="/")
    jobs = [Job(key=job_key(number), spec=long, uid=UID, user="ann", submitted_at=1.0) for number in (1, 2)]
    save(store, waiting(3), *jobs, texts=False)
    array = msgspec.structs.replace(long, array="1-10")
    progress = ArrayProgress(pending=parse_tasks("3-10"), active=2)
    save(
        store,
        Job(key=job_key(4), spec=array, uid=1001, user="bob", submitted_at=1.0, progress=progress),
        texts=False,
    )
    assert kept_bytes(path, Retention(), NOW) == {
        UID: 2 * kept_size(long),
        1001: kept_size(array) // 11 * 9,
    }
    assert kept_size(long) > 2000, "bytes, not characters"


def test_submissions_all_the_time_lose_no_text(path: Path) -> None:
    """Real threads: after each submission its text is there, whatever is thrown away meanwhile."""
    stop = threading.Event()
    problems: list[str] = []

    def sweep() -> None:
        while not stop.is_set():
            apply_retention(path, Retention(texts_days=0, jobs_days=0), time.time() + DAY_S)

    with closing(SqliteStore(path)) as store:
        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        for number in range(1, 150):
            # Two texts in turn: each has been thrown away, or is about to be, when it comes again.
            text = b"environment %d" % (number % 2)
            made = waiting(number, environ=address_of(text))
            store.commit(Changes(jobs={made.key: made}, new={made.key}, blobs={address_of(text): text}))
            if (address_of(text),) not in store._db.execute("SELECT hash FROM blobs").fetchall():
                problems.append(f"the text of job {number} is gone")
            made.state, made.finished_at = JobState.CANCELLED, time.time()
            store.commit(Changes(jobs={made.key: made}))
        stop.set()
        sweeper.join()
        assert is_whole(store._db)
    assert problems == []


def test_tokens_and_the_audit_go_in_time(store: SqliteStore, path: Path) -> None:
    lines = [AuditEntry(NOW - days * DAY_S, None, 0, "", f"{days}", "") for days in (1, 364, 366)]
    tokens = [Submission(1, f"token-{days}", (job_key(1),), NOW - days * DAY_S) for days in (1, 6, 8)]
    store.commit(Changes(audit=lines, submissions=tokens))
    apply_retention(path, Retention(), NOW)
    assert [what for (what,) in store._db.execute("SELECT what FROM audit ORDER BY id")] == ["1", "364"]
    assert store.submission(1, "token-6") and store.submission(1, "token-8") is None


def test_retention_times_are_settings(store: SqliteStore, path: Path) -> None:
    save(store, old(1, 10), old(2, 3))
    assert apply_retention(path, Retention(jobs_days=5), NOW) == 1
    assert numbers(store) == [2]


# ---------------------------------------------------------------- the keeper


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = load({}, {"XDG_CONFIG_HOME": str(tmp_path)})
    return Settings(data=tmp_path, database=tmp_path / "gflow.db", socket=tmp_path / "socket", config=config)


def test_maintenance_backs_up_before_deleting(
    store: SqliteStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, msgspec.structs.replace(old(1, 0), finished_at=time.time() - 400 * DAY_S))
    maintenance.Maintenance(settings).look(time.time())
    assert numbers(store) == []
    (backup,) = settings.backups.iterdir()
    with closing(sqlite3.connect(backup)) as db:
        assert db.execute("SELECT count(*) FROM jobs").fetchone() == (1,), "the backup came first"


def test_backups_on_demand_do_not_prevent_retention(store: SqliteStore, settings: Settings) -> None:
    """A user who makes a backup every day must not get a database that only grows."""
    save(store, msgspec.structs.replace(old(1, 0), finished_at=time.time() - 400 * DAY_S))
    back_up_daily(settings.database, settings.backups)
    maintenance.Maintenance(settings).look(time.time())
    assert numbers(store) == []
    assert len(list(settings.backups.iterdir())) == 1


def test_maintenance_does_each_task_once_a_day(
    store: SqliteStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(maintenance, "apply_retention", lambda *_: done.append("thrown away"))
    keeping_one = maintenance.Maintenance(settings)
    now = time.time()
    for hours in range(0, 48, 6):
        keeping_one.look(now + hours * 3600)
    assert len(done) == 2


@pytest.mark.parametrize(
    "problem", [OSError(28, "No space left on device"), StoreError("full"), sqlite3.Error("x")]
)
def test_maintenance_retries_after_an_error(
    store: SqliteStore, settings: Settings, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def fail(*_: object) -> None:
        raise problem

    save(store, msgspec.structs.replace(old(1, 0), finished_at=time.time() - 400 * DAY_S))
    one = maintenance.Maintenance(settings)
    for name in ("is_backup_due", "back_up_daily"):
        monkeypatch.setattr(maintenance, name, fail)
        one.look(time.time())
        monkeypatch.undo()
        assert numbers(store) == [1], "nothing goes without a backup"
    one.look(time.time())
    assert numbers(store) == []


def test_old_logs_go_and_nothing_else(tmp_path: Path) -> None:
    for name, age in (("1.log", 10), ("1.log.1", 10), ("2_3.log", 10), ("3.log", 1), ("daemon.log", 99)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (NOW - age * DAY_S, NOW - age * DAY_S))
    assert keeping.delete_old_logs(tmp_path, NOW - 5 * DAY_S) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.log", "daemon.log"]


def test_maintenance_sums_up_past_days(
    store: SqliteStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gstats` then counts the present hour alone."""
    now = time.time()
    save(store, msgspec.structs.replace(old(1, 0), finished_at=now - 3 * DAY_S))
    maintenance.Maintenance(settings).look(now)
    counted: list[bool] = []
    count = statistics._of_span
    monkeypatch.setattr(
        statistics, "_of_span", lambda *given: (counted.append(given[2].is_whole), count(*given))[1]
    )
    with closing(store.reader()) as reader:
        found = statistics.statistics(reader, Question(now=now, boot=now), settings.summaries)
    assert (found.total.total, counted) == (1, [False])
