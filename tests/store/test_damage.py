"""Databases damaged in many ways: a clear sentence, nothing overwritten, and a restore that works."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from gflow.core.ids import job_key
from gflow.errors import StoreError
from gflow.store import open
from gflow.store.backup import back_up, restore
from gflow.store.port import Changes
from gflow.store.schema import VERSION
from gflow.store.sqlite import SqliteStore
from tests.harness import Box
from tests.store.disk import is_whole
from tests.store.script import contents, job, plan, submitted

PAGE = 4096
UNPRIVILEGED = 65534
BULK = 200


# ---------------------------------------------------------------- a database with a past


class Past(NamedTuple):
    """A folder with `whole` (closed in order), `crashed` (its log not brought over) and a backup."""

    folder: Path
    # Contents after each commit since the backup; the last is that of both databases.
    contents: list[str]
    backup: str
    next_number: int


def filler(number: int) -> Changes:
    made = job(number)
    return Changes(jobs={made.key: made}, new={made.key}, meta={"next_number": number + 1})


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    folder = tmp_path_factory.mktemp("past")
    living = folder / "living.db"
    steps = plan()
    with closing(SqliteStore(living)) as store:
        for changes in steps[:10]:
            store.commit(changes)
        # Enough jobs for a tree of pages.
        store.commit(Changes(jobs={job(n).key: job(n) for n in range(100, 100 + BULK)}))
        store.commit(filler(400))
        back_up(living, folder / "backup.db")
        backup = contents(store._db)
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        found = [backup]
        for changes in steps[10:]:
            store.commit(changes)
            found.append(contents(store._db))
        for number in range(500, 520):
            store.commit(filler(number))
            found.append(contents(store._db))
        for end in ("", "-wal"):
            shutil.copyfile(f"{living}{end}", folder / f"crashed.db{end}")
    living.rename(folder / "whole.db")
    return Past(folder, found, backup, next_number=520)


@pytest.fixture
def box_of(past: Past, tmp_path: Path) -> Callable[[str], Path]:
    """A fresh copy of one of the two databases."""

    def make(kind: str) -> Path:
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        for end in ("", "-wal"):
            source = past.folder / f"{kind}.db{end}"
            if source.exists():
                shutil.copyfile(source, folder / f"gflow.db{end}")
        return folder / "gflow.db"

    return make


# ---------------------------------------------------------------- ways to damage


def truncated(keep: Callable[[int], int]) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, keep(path.stat().st_size))


def overwritten(offset: int | Callable[[Path], int], data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        at = offset if isinstance(offset, int) else offset(path)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    return damage


def replaced(data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(data)

    return damage


def root_of(table: str) -> Callable[[Path], int]:
    """Where the root page of a table begins."""

    def find(path: Path) -> int:
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as db:
            (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        return (page - 1) * PAGE

    return find


def leaf_of_jobs(path: Path) -> int:
    """Where the last leaf of the jobs begins: the right-most child of the root."""
    root = root_of("jobs")(path)
    data = path.read_bytes()
    assert data[root] == 5, "the jobs need more than one page for this test"
    (page,) = struct.unpack(">I", data[root + 8 : root + 12])
    return (page - 1) * PAGE


def pointers_of_leaf(path: Path) -> int:
    return leaf_of_jobs(path) + 8


def in_leaf(text: bytes) -> Callable[[Path], int]:
    """Where a row in the last leaf of the jobs says `text`: the rows fill a page from its end."""

    def find(path: Path) -> int:
        leaf = leaf_of_jobs(path)
        return path.read_bytes().rindex(text, leaf, leaf + PAGE)

    return find


def text_in(text: bytes, shift: int = 0) -> Callable[[Path], int]:
    """Where the file says `text`."""

    def find(path: Path) -> int:
        at = path.read_bytes().find(text)
        assert at > 0
        return at + shift

    return find


def statement(*lines: str) -> Callable[[Path], None]:
    """A foreign change of the database."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for line in lines:
                db.execute(line)

    return damage


def foreign(*lines: str, name: str = "gflow.db") -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        statement("CREATE TABLE bookmarks (url TEXT)", *lines)(path.with_name(name))

    return damage


def foreign_log(path: Path) -> None:
    """The log of another program's database has got beside ours."""
    other = path.with_name("other")
    with closing(sqlite3.connect(other, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        shutil.copyfile(f"{other}-wal", f"{path}-wal")
    other.unlink()


def log_of_another_of_ours(path: Path) -> None:
    """The log of another gflow database: right by all its marks, and for other pages."""
    other = path.with_name("other")
    with closing(SqliteStore(other)) as store:
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for number in range(1, 10):
            store.commit(submitted(number))
        shutil.copyfile(f"{other}-wal", f"{path}-wal")
    other.unlink()


def newer_in_the_log(path: Path) -> None:
    """A newer gflow migrated and crashed: the file itself still says the old version."""
    living = path.with_name("living")
    path.rename(living)
    with closing(sqlite3.connect(living, isolation_level=None)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
        for end in ("", "-wal"):
            shutil.copyfile(f"{living}{end}", f"{path}{end}")
    living.unlink()


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_text("kept")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "unmounted" / "gflow.db")


def link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def noise(path: Path) -> None:
    size = path.stat().st_size // PAGE
    overwritten(size // 3 * PAGE, bytes(range(1, 256)) * (PAGE // 255) * 10)(path)


def without_log(path: Path) -> None:
    path.with_name("gflow.db-wal").unlink()


def without_file(path: Path) -> None:
    path.unlink()


# name: (which database, what happens to it, what the sentence says)
REFUSED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "empty": ("whole", truncated(lambda _: 0), "it is empty"),
    "empty, with its log": ("crashed", truncated(lambda _: 0), "it is empty"),
    "cut within the header": ("whole", truncated(lambda _: 50), "does not start like one"),
    "cut after the header": ("whole", truncated(lambda _: 100), "should be longer"),
    "cut after one page": ("whole", truncated(lambda _: PAGE), "should be longer"),
    "cut in half": ("whole", truncated(lambda size: size // 2), "should be longer"),
    "last page gone": ("whole", truncated(lambda size: size - PAGE), "should be longer"),
    "last bytes gone": ("whole", truncated(lambda size: size - 100), "should be longer"),
    "cut in half, with its log": ("crashed", truncated(lambda size: size // 2), "damaged|malformed"),
    "first page zeroed": ("whole", overwritten(0, bytes(PAGE)), "does not start like one"),
    "header zeroed": ("whole", overwritten(0, bytes(100)), "does not start like one"),
    "schema zeroed": ("whole", overwritten(100, bytes(PAGE - 100)), "malformed|no table"),
    "root of the jobs zeroed": ("whole", overwritten(root_of("jobs"), bytes(PAGE)), "damaged|malformed"),
    "leaf of the jobs zeroed": ("whole", overwritten(leaf_of_jobs, bytes(PAGE)), "damaged|malformed"),
    "index zeroed": ("whole", overwritten(root_of("jobs_of_user"), bytes(PAGE)), "damaged|malformed"),
    "byte of the magic": ("whole", overwritten(3, b"x"), "does not start like one"),
    "page size": ("whole", overwritten(16, b"\0\3"), "not a database|malformed|damaged"),
    "format too new": ("whole", overwritten(18, b"\x09\x09"), "not a database|readonly|unsupported|cannot"),
    "application id": ("whole", overwritten(68, b"\x01"), "not a gflow database"),
    "version turned over": ("whole", overwritten(60, b"\x01"), "newer gflow"),
    "list of free pages": ("whole", overwritten(32, b"\0\xff\xff\xff\0\0\0\x07"), "damaged|malformed"),
    "statement in the schema": (
        "whole",
        overwritten(text_in(b"CREATE TABLE submissions"), b"CREATE TUBLE"),
        "malformed",
    ),
    "kind of a page": ("whole", overwritten(root_of("blobs"), b"\x07"), "damaged|malformed"),
    "pointers in a leaf": ("whole", overwritten(pointers_of_leaf, b"\xff" * 20), "damaged|malformed"),
    "noise in the middle": ("whole", noise, "damaged|malformed"),
    "text": ("whole", replaced(b"this is no database\n" * 500), "does not start like one"),
    "zeros": ("whole", replaced(bytes(10 * PAGE)), "does not start like one"),
    "other program's": ("whole", foreign(), "not a gflow database"),
    "other program's, marked": ("whole", foreign("PRAGMA application_id = 7"), "not a gflow database"),
    "other program's jobs": (
        "whole",
        foreign("CREATE TABLE jobs (key INTEGER)", f"PRAGMA user_version = {VERSION}"),
        "not a gflow database",
    ),
    "newer schema": ("whole", statement(f"PRAGMA user_version = {VERSION + 1}"), "newer gflow"),
    "newer schema in the log": ("whole", newer_in_the_log, "newer gflow"),
    "table missing": ("whole", statement("DROP TABLE holds"), "no table holds"),
    "directory": ("whole", directory, "is no file"),
    "pipe": ("whole", pipe, "is no file"),
    "dangling link": ("whole", dangling, "points to .* which does not exist"),
    "link to itself": ("whole", link_to_itself, "points to .* which does not exist"),
    "gone, and its log is there": ("crashed", without_file, "is gone, but its log"),
    "other program's log": ("whole", foreign_log, "not a gflow database|damaged|malformed"),
}


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """Every name and byte, but for SQLite's shared memory, which is none of the database."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith("-shm"):
            continue
        if path.is_symlink():
            found[path.name] = f"link to {path.readlink()}"
        else:
            found[path.name] = path.read_bytes() if path.is_file() else "no file"
    return found


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize("name", REFUSED)
def test_damage_is_refused_and_nothing_is_overwritten(
    box_of: Callable[[str], Path], past: Past, name: str
) -> None:
    kind, damage, sentence = REFUSED[name]
    path = box_of(kind)
    damage(path)
    before = snapshot(path.parent)
    for _ in range(2):  # a second look finds the same
        with pytest.raises(StoreError, match=sentence) as caught:
            SqliteStore(path)
        assert str(path) in caught.value.message or str(path) in caught.value.hint
        assert "\n" not in caught.value.message
        assert snapshot(path.parent) == before

    kept = restore(past.folder / "backup.db", path, first_free_number=1)
    with closing(SqliteStore(path)) as store:
        assert is_whole(store._db)
        assert [job.key for job in store.jobs(active=False)] == [
            job.key for job in jobs_of(past.folder / "backup.db")
        ]
        assert store.load().next_number >= 401, "numbers of the backup are not given out again"
    after = snapshot(path.parent)
    still_there = set(map(str, before.values())) - set(map(str, after.values()))
    assert not still_there or name in ("dangling link", "link to itself"), "what was there is kept"
    assert (kept is not None) or name in ("dangling link", "gone, and its log is there")


def jobs_of(path: Path) -> list:
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as db:
        return [job(key >> 20) for (key,) in db.execute("SELECT key FROM jobs ORDER BY key")]


def test_damage_cases_are_at_least_twenty() -> None:
    assert len(REFUSED) >= 20


def test_an_unreadable_database_is_refused(box_of: Callable[[str], Path]) -> None:
    path = box_of("whole")
    path.chmod(0)
    before = path.stat()
    assert "Permission denied" in as_unprivileged(lambda: SqliteStore(path), path.parent)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_database_in_read_only_folder_is_refused(box_of: Callable[[str], Path]) -> None:
    path = box_of("whole")
    path.chmod(0o444)
    said = as_unprivileged(lambda: SqliteStore(path), path.parent, mode=0o555)
    assert "may not be written to" in said
    missing = path.parent / "below" / "gflow.db"
    assert "may not be written to" in as_unprivileged(lambda: SqliteStore(missing), path.parent, mode=0o555)


def as_unprivileged(act: Callable[[], object], folder: Path, mode: int = 0o700) -> str:
    """The error for an unprivileged user; root has too many rights for this."""
    if os.getuid() == 0:
        for parent in (folder, *folder.parents):
            if parent.stat().st_mode & 0o005 != 0o005 and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o055)
        os.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
    folder.chmod(mode)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(UNPRIVILEGED)
                os.setuid(UNPRIVILEGED)
            act()
            os.write(writing, b"it works")
        except StoreError as error:
            os.write(writing, error.message.encode())
        except BaseException as error:
            os.write(writing, f"not our error: {error!r}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    folder.chmod(0o700)
    assert "\n" not in said
    return said


# ---------------------------------------------------------------- what SQLite makes good


def log_cut(path: Path) -> None:
    log = path.with_name("gflow.db-wal")
    os.truncate(log, log.stat().st_size - 1000)


def log_with_noise(path: Path) -> None:
    with path.with_name("gflow.db-wal").open("ab") as file:
        file.write(bytes(range(256)) * 40)


def log_flipped(path: Path) -> None:
    log = path.with_name("gflow.db-wal")
    overwritten(log.stat().st_size // 2, b"\xff\x00\xff")(log)


def log_header_flipped(path: Path) -> None:
    overwritten(8, b"\xff\xff")(path.with_name("gflow.db-wal"))


def stale_memory(path: Path) -> None:
    path.with_name("gflow.db-shm").write_bytes(bytes(range(256)) * 128)


def cut_off_creation(path: Path) -> None:
    path.with_name("gflow.db.new").write_bytes(b"half a database")
    path.with_name("gflow.db.new-journal").write_bytes(b"and its journal")


def moved_behind_a_link(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    for end in ("", "-wal"):
        path.with_name(path.name + end).rename(elsewhere / f"gflow.db{end}")
    path.symlink_to(elsewhere / "gflow.db")


RECOVERED = {
    "nothing": (lambda path: None, True),
    "stale shared memory": (stale_memory, True),
    "noise after the log": (log_with_noise, True),
    "a creation that was cut off": (cut_off_creation, True),
    "moved behind a link": (moved_behind_a_link, True),
    # The log cannot tell a commit that was cut off from one that was damaged later: what is before it counts.
    "end of the log gone": (log_cut, False),
    "bytes within the log": (log_flipped, False),
    "header of the log": (log_header_flipped, False),
    "log gone": (without_log, False),
}


@pytest.mark.parametrize("name", RECOVERED)
def test_commits_in_the_log_are_recovered(box_of: Callable[[str], Path], past: Past, name: str) -> None:
    damage, is_complete = RECOVERED[name]
    path = box_of("crashed")
    damage(path)
    with closing(SqliteStore(path)) as store:
        assert is_whole(store._db)
        found = contents(store._db)
        assert found in past.contents, "a state that never was"
        if is_complete:
            assert found == past.contents[-1]
        store.commit(filler(600))
        assert store.job(job_key(600)) is not None


def test_the_log_of_another_gflow_database_is_no_disaster(box_of: Callable[[str], Path]) -> None:
    """SQLite cannot tell whose log it is. Either the check finds the mixture, or what comes up is whole."""
    path = box_of("whole")
    log_of_another_of_ours(path)
    before = snapshot(path.parent)
    try:
        store = SqliteStore(path)
    except StoreError:
        assert snapshot(path.parent) == before
    else:
        assert is_whole(store._db)
        store.load()
        store.close()


# ---------------------------------------------------------------- found later


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if every database were too large to be checked at the start."""
    monkeypatch.setattr(open, "_is_small", lambda path: False)
    yield


def test_damage_in_a_large_database_is_a_sentence_when_it_is_met(
    large: None, box_of: Callable[[str], Path], tmp_path: Path
) -> None:
    path = box_of("whole")
    overwritten(leaf_of_jobs, bytes(PAGE))(path)
    with closing(SqliteStore(path)) as store:
        with pytest.raises(StoreError, match="cannot be read: database disk image is malformed"):
            store.load()
        with pytest.raises(StoreError, match="cannot be read"):
            list(store.jobs(active=False))
        with pytest.raises(StoreError, match="cannot be written"):
            store.commit(Changes(jobs={job(519).key: job(519, reason="x")}))
        with pytest.raises(StoreError, match=r"damaged|malformed"):
            back_up(path, tmp_path / "backups" / "today.db")
        assert list((tmp_path / "backups").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "instead"),
    [(b"Queued", b"Quxued"), (b'"command"', b'"commend"'), (b'{"command', b'["command'), (b'":1}', b'":1x')],
    ids=["state", "name of a field", "bracket", "end of the spec"],
)
def test_a_record_that_cannot_be_read_is_a_sentence(
    box_of: Callable[[str], Path], past: Past, text: bytes, instead: bytes
) -> None:
    """The pages are whole and the text in them is not: the daemon does not start without that job."""
    path = box_of("whole")
    overwritten(in_leaf(text), instead)(path)
    before = snapshot(path.parent)
    with closing(SqliteStore(path)) as store:
        with pytest.raises(StoreError, match=r"the record of job \d+ in the database is damaged"):
            store.load()
    assert snapshot(path.parent) == before
    restore(past.folder / "backup.db", path, 1)
    with closing(SqliteStore(path)) as store:
        assert store.load().next_number == past.next_number


def test_a_text_that_is_not_what_was_submitted_is_never_run(box_of: Callable[[str], Path]) -> None:
    path = box_of("whole")
    overwritten(text_in(b"JOB=3\0"), b"JOB=X")(path)
    with closing(SqliteStore(path)) as store:
        with pytest.raises(StoreError, match="is damaged"):
            store.blob(job(3).spec.environ)
        assert store.blob(job(4).spec.environ)


# ---------------------------------------------------------------- the daemon

SHOWN = [
    "empty", "cut in half", "leaf of the jobs zeroed", "text", "other program's", "newer schema in the log",
    "directory",
]  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_damage_is_one_sentence_and_restore_repairs(box: Box, past: Past, name: str) -> None:
    kind, damage, _ = REFUSED[name]
    box.data.mkdir(parents=True, mode=0o700)
    path = box.data / "gflow.db"
    for end in ("", "-wal"):
        source = past.folder / f"{kind}.db{end}"
        if source.exists():
            shutil.copyfile(source, f"{path}{end}")
    damage(path)
    before = {name: data for name, data in snapshot(box.data).items() if name.startswith("gflow.db")}
    done = box.run("gflowd", "run")
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("gflowd: ") and len(lines) <= 2, done.stderr
    assert {name: data for name, data in snapshot(box.data).items() if name.startswith("gflow.db")} == before

    said = box.ok("gflowd", "restore", str(past.folder / "backup.db"))
    assert "before-restore" in said
    box.up("--cpus", "1")
    known = {job.number for job in jobs_of(past.folder / "backup.db")}
    assert set(box.jobs()) == known
    assert box.submit("true") > max(known)


def test_a_daemon_does_not_restore_under_another(daemon: Box, past: Past) -> None:
    done = daemon.run("gflowd", "restore", str(past.folder / "backup.db"))
    assert done.returncode == 1
    assert "already runs" in done.stderr
    assert daemon.jobs() == {}
