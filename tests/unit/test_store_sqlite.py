"""The contract of the store on disk alone: durability, and refusals."""

import gc
import shutil
import sqlite3
from contextlib import closing

import pytest

from gflow.core.ids import job_key
from gflow.core.model import FINAL, JobState
from gflow.errors import StoreError
from gflow.store import files, ownership
from gflow.store.files import beside
from gflow.store.port import Changes, Submission, address_of
from gflow.store.schema import APPLICATION_ID, VERSION
from gflow.store.sqlite import SqliteStore

from .builders import NOON, ended, job, running

REFUSED = (sqlite3.IntegrityError, StoreError)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gflow.db"


@pytest.fixture
def store(path):
    with closing(SqliteStore(path)) as opened:
        yield opened


def save(store, *jobs):
    store.commit(Changes(jobs={job.key: job for job in jobs}))


def taken(job, token="token"):
    return Changes(
        jobs={job.key: job},
        submissions=[Submission(job.uid, token, (job.key,), NOON)],
        meta={"next_number": 9},
    )


# ---------------------------------------------------------------- durable


def test_committed_changes_survive_a_restart(path):
    text = b"#!/bin/sh\n"
    with closing(SqliteStore(path)) as store:
        store.commit(taken(running(1, 0)))
        store.commit(Changes(blobs={address_of(text): text}))
        before = store.load()
    with closing(SqliteStore(path)) as store:
        assert store.load() == before
        assert store.submission(running(1).uid, "token") == (job_key(1),)
        assert store.blob(address_of(text)) == text


def test_a_commit_is_seen_by_another_connection_before_close(path, store):
    save(store, job(1))
    with closing(SqliteStore(path)) as other:
        assert other.job(job_key(1)) == job(1)


def test_commits_reach_the_disk_before_they_return(store):
    settings = {
        name: store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    }
    assert settings == {"journal_mode": "wal", "synchronous": 2}


def test_the_files_are_the_owners_alone(path, store):
    save(store, job(1))
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes["gflow.db"] == 0o600
    assert set(modes.values()) == {0o600}


def test_missing_folders_are_made_for_the_owner_alone(tmp_path):
    folder = tmp_path / "data"
    SqliteStore(folder / "gflow.db").close()
    assert folder.stat().st_mode & 0o777 == 0o700


# ---------------------------------------------------------------- refused changes


def test_two_jobs_cannot_have_one_gpu(store):
    save(store, running(1, 0, 1))
    with pytest.raises(REFUSED):
        save(store, running(2, 1, 2))


@pytest.mark.parametrize("alone_first", [True, False])
def test_a_shared_job_cannot_have_the_gpu_of_one_that_is_alone(store, alone_first):
    jobs = [running(1, 0), running(2, 0, shared=True, gpu_memory_mib=512)]
    first, second = jobs if alone_first else jobs[::-1]
    save(store, first)
    with pytest.raises(REFUSED):
        save(store, second)


def test_two_jobs_cannot_take_one_gpu_in_one_commit(store):
    with pytest.raises(REFUSED):
        save(store, running(1, 0), running(2, 0))


@pytest.mark.parametrize("after", JobState, ids=lambda state: state.value)
@pytest.mark.parametrize("before", sorted(FINAL, key=lambda s: s.value), ids=lambda state: state.value)
def test_a_final_job_cannot_change(store, before, after):
    save(store, ended(1, before))
    with pytest.raises(REFUSED, match="final job"):
        save(store, job(1, state=after, reason="changed"))
    assert store.job(job_key(1)) == ended(1, before)


@pytest.mark.parametrize(
    "unlawful",
    [
        running(1, attempt=0),
        running(1, started_at=None),
        job(1, stopping=JobState.CANCELLED),
        job(1, finished_at=NOON),
        running(1, finished_at=NOON),
        ended(1, finished_at=None),
        ended(1, stopping=JobState.TIMEOUT),
        running(1, attempt=-1),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(store, unlawful):
    with pytest.raises(REFUSED):
        save(store, unlawful)
    assert store.job(unlawful.key) is None


def test_a_token_is_taken_once(store):
    store.commit(taken(job(1)))
    with pytest.raises(REFUSED):
        store.commit(taken(job(2)))
    assert store.submission(job(1).uid, "token") == (job_key(1),)


def test_refused_commit_leaves_nothing_next_one_works(store):
    save(store, running(1, 0))
    before = store.load()
    with pytest.raises(REFUSED):
        changes = taken(job(2))
        changes.blobs[address_of(b"x")] = b"x"
        changes.jobs[job_key(3)] = running(3, 0)
        store.commit(changes)
    assert store.load() == before
    with pytest.raises(StoreError):
        store.blob(address_of(b"x"))
    store.commit(taken(job(2)))
    assert [found.number for found in store.load().jobs] == [1, 2]


# ---------------------------------------------------------------- refused files


def database(path, *statements):
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def newer(path):
    SqliteStore(path).close()
    database(path, f"PRAGMA user_version = {VERSION + 1}")


def foreign(path):
    database(path, "CREATE TABLE bookmarks (url TEXT)", "INSERT INTO bookmarks VALUES ('x')")


def foreign_with_our_version(path):
    database(path, "CREATE TABLE jobs (key INTEGER)", f"PRAGMA user_version = {VERSION}")


def foreign_without_tables(path):
    database(path, f"PRAGMA application_id = {APPLICATION_ID + 1}")


def foreign_in_wal_mode(path):
    database(path, "PRAGMA journal_mode = WAL", "CREATE TABLE bookmarks (url TEXT)")


def foreign_after_a_crash(path):
    """The last commits are in the log beside the file, and not in the file yet."""
    living = path.with_name("living")
    with closing(sqlite3.connect(living, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        for end in ("", "-wal"):
            path.with_name(path.name + end).write_bytes(living.with_name(living.name + end).read_bytes())
    living.unlink()


@pytest.mark.parametrize(
    "make",
    [
        foreign,
        foreign_with_our_version,
        foreign_without_tables,
        foreign_in_wal_mode,
        foreign_after_a_crash,
        newer,
        pytest.param(lambda path: path.touch(), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"hello\n"), id="short_text"),
        pytest.param(lambda path: path.write_bytes(b"hello world\n" * 1000), id="long_text"),
        pytest.param(lambda path: path.write_bytes(bytes(8192)), id="zeros"),
    ],
)
def test_foreign_file_is_refused_and_left_unchanged(path, make):
    make(path)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(StoreError) as caught:
        SqliteStore(path)
    assert str(path) in caught.value.message
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


@pytest.mark.parametrize("make", [foreign, foreign_in_wal_mode, newer])
def test_the_database_itself_is_byte_for_byte_the_same(path, make):
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreError):
        SqliteStore(path)
    gc.collect()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (newer, "newer gflow"),
        (foreign, "not a gflow database"),
        (lambda path: path.write_bytes(b"text" * 999), "damaged or no database"),
        (lambda path: path.touch(), "it is empty"),
    ],
    ids=["newer", "foreign", "text", "empty"],
)
def test_the_refusal_says_why(path, make, message):
    make(path)
    with pytest.raises(StoreError, match=message):
        SqliteStore(path)


def test_a_folder_in_its_place_is_refused(path):
    path.mkdir()
    with pytest.raises(StoreError):
        SqliteStore(path)


def test_our_file_is_marked_as_ours(path, store):
    pragmas = [
        store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    ]
    assert pragmas == [APPLICATION_ID, VERSION]


def test_log_of_a_daemon_has_its_full_length_and_a_crash_loses_nothing(path, tmp_path):
    with closing(SqliteStore(path, ownership.private(0))) as store:
        assert beside(path, "-wal").stat().st_size >= files.LOG_BYTES
        store.commit(Changes(meta={"next_number": 7}))
        for suffix in ("", "-wal"):
            shutil.copy(beside(path, suffix), tmp_path / f"crashed.db{suffix}")
    with closing(SqliteStore(tmp_path / "crashed.db", ownership.private(0))) as store:
        assert store.load().next_number == 7


def test_log_is_not_lengthened_where_space_is_short(path, monkeypatch):
    monkeypatch.setattr(files, "SHORT_BYTES", 1 << 60)
    with closing(SqliteStore(path, ownership.private(0))):
        assert beside(path, "-wal").stat().st_size < files.LOG_BYTES
