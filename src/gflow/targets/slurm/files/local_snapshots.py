"""Local snapshots: the files of a project as they were when a job was submitted.

    FOLDER/PROJECT/TREE/          the files; never changed once it has this name
    FOLDER/PROJECT/TREE.index     path, size and mtime of each file, and the inode that it was copied from

A file that has not changed since the last snapshot is a hard link to the file of that snapshot. If no file
has changed, the last snapshot itself is used. A submission refers to its snapshot as `PROJECT/TREE.TOKEN`: on
the cluster each submission has a folder of its own.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from gflow.errors import Refused
from gflow.targets.slurm.files.file_selection import Entry, Selection, select

MIB = 1 << 20
# A file that was changed so shortly before it was copied may change again without a new mtime.
RACY_NS = 2_000_000_000
# How often a file is copied again that changes meanwhile.
MAX_COPIES = 5
# New files that are synced at the same time.
MAX_SYNCS = 32
COPY_BYTES = 1 << 30
# Snapshots younger than this are kept: their job may not be in the database yet.
YOUNG_S = 3600.0
EXECUTABLE = 0o100


class IndexRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file of a snapshot: size and mtime, and of the source the inode, ctime and mode."""

    path: bytes
    size: int
    mtime_ns: int
    ino: int
    ctime_ns: int
    mode: int

    @property
    def is_settled(self) -> bool:
        """Whether an equal status of the source means equal content."""
        return self.ctime_ns > 0


Index = dict[bytes, IndexRow]


class SnapshotId(NamedTuple):
    """The snapshot of a submission, parsed: `PROJECT/TREE.TOKEN`."""

    project: str
    tree: str
    token: str

    def __str__(self) -> str:
        return f"{self.project}/{self.tree}.{self.token}"


NAME = re.compile(r"([\w.+-]+)/([0-9]+-[0-9]+-[0-9a-f]+)\.([0-9a-f]+)", re.ASCII)


def parse_id(text: str) -> SnapshotId:
    """Parse a snapshot id; ValueError: it is none. An id is safe as a path and in a shell."""
    found = NAME.fullmatch(text)
    if found is None or text.startswith((".", "-")):
        raise ValueError(f"not a snapshot: {text!a:.80}")
    return SnapshotId(*found.groups())


class Taken(NamedTuple):
    """A snapshot that was taken for a submission, and a note for the user."""

    id: str
    note: str
    # Bytes of files that the last snapshot did not have.
    new_bytes: int


class LocalSnapshots:
    """The snapshots of all projects, below one folder. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        # The index that was read last, by tree.
        self._cached: tuple[str, Index] = ("", {})

    def take(self, root: str, limit_bytes: int) -> Taken:
        """Take a snapshot of the folder `root`.

        Raises Refused if more than `limit_bytes` are new since the last snapshot (0: no limit), or if a file
        cannot be read.
        """
        started_ns = time.time_ns()
        try:
            selection = select(root)
        except OSError as error:
            raise _not_taken(error) from None
        if not selection.entries:
            raise Refused(
                f"there are no files to send in {root!a}: git ignores all of them, or the folder is empty",
                hint="--sync FOLDER names another folder; --no-sync sends none",
            )
        project = project_name(root)
        with self._lock:
            last = self._last_tree(project)
            index = self.read_index(project, last) if last else {}
            changed = [entry for entry in selection.entries if not _is_same(entry, index.get(entry.path))]
            new = [entry for entry in changed if not _looks_same(entry, index.get(entry.path))]
            new_bytes = sum(entry.stat.st_size for entry in new)
            if limit_bytes and new_bytes > limit_bytes:
                raise _too_large(root, new, new_bytes, limit_bytes)
            if not last or changed or len(selection.entries) != len(index):
                try:
                    last = self._make(root, project, last, selection, index, started_ns)
                except OSError as error:
                    raise _not_taken(error) from None
        return Taken(f"{project}/{last}.{secrets.token_hex(3)}", _note(selection, new), new_bytes)

    def path(self, snapshot: SnapshotId) -> Path:
        """The folder with the files of a snapshot."""
        return self._folder / snapshot.project / snapshot.tree

    def is_whole(self, snapshot: SnapshotId) -> bool:
        """Whether the files of a snapshot have the sizes that they had: a crash may have lost some."""
        top = os.fsencode(self.path(snapshot))
        rows = self.read_index(snapshot.project, snapshot.tree).values()
        try:
            return all(os.lstat(top + b"/" + row.path).st_size == row.size for row in rows)
        except OSError:
            return False

    def read_index(self, project: str, tree: str) -> Index:
        """The index of a snapshot, by path; empty: there is none."""
        name = f"{project}/{tree}"
        if self._cached[0] != name:
            try:
                rows = msgspec.msgpack.decode(
                    (self._folder / f"{name}.index").read_bytes(), type=list[IndexRow]
                )
            except (OSError, msgspec.DecodeError):
                return {}
            self._cached = name, {row.path: row for row in rows}
        return self._cached[1]

    def prune(self, used: set[str], now: float, keeps_index: set[str] | None) -> None:
        """Delete snapshots that no unfinished job uses, except young ones and the last of each project.

        The index of a snapshot stays while it is among `keeps_index` (None: all stay): results are compared
        with it. `used` and `keeps_index` have names `PROJECT/TREE`.
        """
        with self._lock:
            for project in _folders(self._folder):
                trees = self._trees(project)
                for tree in trees[:-1]:
                    name, path = f"{project}/{tree}", self._folder / project / tree
                    if name not in used and _age(path, now) > YOUNG_S:
                        _remove_tree(path)
                self._prune_rest(project, now, keeps_index)

    def _prune_rest(self, project: str, now: float, keeps_index: set[str] | None) -> None:
        """Delete indexes without a snapshot, and what a daemon that was killed left half made."""
        folder = self._folder / project
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(".") and _age(Path(entry.path), now) > YOUNG_S:
                _remove_tree(Path(entry.path))
            tree, _, kind = entry.name.partition(".")
            is_kept = keeps_index is None or f"{project}/{tree}" in keeps_index
            is_free = kind == "index" and not is_kept
            if is_free and not (folder / tree).exists() and _age(Path(entry.path), now) > YOUNG_S:
                os.unlink(entry.path)

    # ------------------------------------------------------------ making one

    def _trees(self, project: str) -> list[str]:
        names = _folders(self._folder / project)
        return sorted(name for name in names if not name.startswith("."))

    def _last_tree(self, project: str) -> str:
        trees = self._trees(project)
        return trees[-1] if trees else ""

    def _make(
        self, root: str, project: str, last: str, selection: Selection, index: Index, started_ns: int
    ) -> str:
        """Make a snapshot under a temporary name, sync it, and rename it; its name."""
        folder = self._folder / project
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tree = _new_name(folder, started_ns)
        part = os.fsencode(folder / f".{tree}")
        try:
            os.mkdir(part, 0o700)
            builder = _Builder(
                os.fsencode(root), part, os.fsencode(folder / last) if last else b"", started_ns
            )
            rows = [builder.add(entry, index.get(entry.path)) for entry in selection.entries]
            with open(folder / f"{tree}.index", "wb", opener=_private) as file:
                file.write(msgspec.msgpack.encode(rows))
                file.flush()
                builder.sync(file.fileno())
            os.rename(part, folder / tree)
            _sync(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            with suppress(OSError):
                os.unlink(folder / f"{tree}.index")
            raise
        self._cached = f"{project}/{tree}", {row.path: row for row in rows}
        return tree


class _Builder:
    """Puts files into a new snapshot: as hard links to the last one, or as copies."""

    def __init__(self, root: bytes, part: bytes, last: bytes, started_ns: int) -> None:
        self._root, self._part, self._last, self._started_ns = root, part, last, started_ns
        self._made = {b""}
        self._copied: list[bytes] = []

    def add(self, entry: Entry, known: IndexRow | None) -> IndexRow:
        path = self._part + b"/" + entry.path
        self._make_folders(os.path.dirname(entry.path))
        if known is not None and _is_same(entry, known):
            try:
                os.link(self._last + b"/" + entry.path, path, follow_symlinks=False)
                return known
            except OSError as error:  # too many links, or the file of the last snapshot is gone
                if error.errno not in (errno.EMLINK, errno.ENOENT):
                    raise
        if entry.is_link:
            os.symlink(os.readlink(self._root + b"/" + entry.path), path)
            os.utime(path, ns=(entry.stat.st_mtime_ns, entry.stat.st_mtime_ns), follow_symlinks=False)
            return _row(entry.path, entry.stat, self._started_ns)
        self._copied.append(path)
        return self._copy(entry.path, path)

    def _make_folders(self, folder: bytes) -> None:
        if folder not in self._made:
            self._make_folders(os.path.dirname(folder))
            os.mkdir(self._part + b"/" + folder, 0o700)
            self._made.add(folder)

    def _copy(self, path: bytes, there: bytes) -> IndexRow:
        """Copy a file. One that changes meanwhile is copied again, and is not linked to the next time."""
        with open(self._root + b"/" + path, "rb", opener=_no_link) as source:
            for _ in range(MAX_COPIES):
                before = os.fstat(source.fileno())
                mode = 0o600 | (before.st_mode & EXECUTABLE)
                with open(there, "wb", opener=_private) as copy:
                    _copy_bytes(source.fileno(), copy.fileno())
                    os.fchmod(copy.fileno(), mode)
                    os.utime(copy.fileno(), ns=(before.st_mtime_ns, before.st_mtime_ns))
                    size = os.fstat(copy.fileno()).st_size
                after = os.fstat(source.fileno())
                if _identity(before) == _identity(after) and size == before.st_size:
                    return _row(path, before, self._started_ns)
        return IndexRow(path, size, before.st_mtime_ns, 0, 0, mode)

    def sync(self, index: int) -> None:
        """Make the new files durable, with the index. Many at once: the file system commits them together."""
        with ThreadPoolExecutor(min(MAX_SYNCS, len(self._copied) or 1)) as pool:
            list(pool.map(_sync, self._copied))
        os.fsync(index)


def project_name(root: str) -> str:
    """The name of a project's folders: readable, and different for each path."""
    path = os.path.realpath(root)
    base = re.sub(r"[^A-Za-z0-9._+-]+", "-", os.path.basename(path)).lstrip(".-")[:40] or "project"
    return f"{base}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def spell_bytes(count: int) -> str:
    """`250 MiB`, `1.5 GiB`."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}" if value < 10 and units[0] != "B" else f"{value:.0f} {units[0]}"


def _new_name(folder: Path, now_ns: int) -> str:
    """A name that sorts by time. Milliseconds are hexadecimal, so that names of one second differ."""
    seconds, rest = divmod(now_ns, 1_000_000_000)
    for count in range(rest // 1_000_000, 1 << 20):
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(seconds))}-{count:04x}"
        if not (folder / name).exists() and not (folder / f"{name}.index").exists():
            return name
    raise OSError(errno.EEXIST, "no free name for a snapshot")


def _is_same(entry: Entry, row: IndexRow | None) -> bool:
    """Whether a file is as it was when this row was written."""
    if row is None or not row.is_settled:
        return False
    was = row.size, row.mtime_ns, row.ino, row.ctime_ns, row.mode
    return (*_identity(entry.stat), entry.stat.st_mode) == was


def _looks_same(entry: Entry, row: IndexRow | None) -> bool:
    """Whether size and mtime are equal, so that rsync does not send the file again."""
    return row is not None and (row.size, row.mtime_ns) == (entry.stat.st_size, entry.stat.st_mtime_ns)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def _row(path: bytes, status: os.stat_result, started_ns: int) -> IndexRow:
    size, mtime_ns, ino, ctime_ns = _identity(status)
    is_racy = max(mtime_ns, ctime_ns) > started_ns - RACY_NS
    return IndexRow(path, size, mtime_ns, ino, 0 if is_racy else ctime_ns, status.st_mode)


def _copy_bytes(source: int, copy: int) -> None:
    """Copy a file from its beginning; as a reflink where the file system can."""
    os.lseek(source, 0, os.SEEK_SET)
    try:
        while os.copy_file_range(source, copy, COPY_BYTES):
            pass
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
        os.lseek(source, 0, os.SEEK_SET)
        os.lseek(copy, 0, os.SEEK_SET)
        while block := os.read(source, MIB):
            os.write(copy, block)


def _private(path: str | bytes, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _no_link(path: str | bytes, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _age(path: Path, now: float) -> float:
    """Seconds since a snapshot got its name: a rename changes the ctime."""
    try:
        return now - path.lstat().st_ctime
    except OSError:
        return 0.0


def _remove_tree(path: Path) -> None:
    """Delete a snapshot, first renamed, so that nothing takes a rest of it for a snapshot."""
    doomed = path if path.name.startswith(".") else path.with_name(f".{path.name}")
    with suppress(OSError):
        os.rename(path, doomed)
        shutil.rmtree(doomed)


def _sync(path: bytes | Path) -> None:
    """Write a file or a folder to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _too_large(root: str, new: list[Entry], new_bytes: int, limit_bytes: int) -> Refused:
    sizes: dict[str, int] = {}
    for entry in new:
        top = os.fsdecode(entry.path.partition(b"/")[0])
        sizes[top] = sizes.get(top, 0) + entry.stat.st_size
    largest = [
        name for name in sorted(sizes, key=lambda name: -sizes[name])[:3] if sizes[name] * 20 > new_bytes
    ]
    named = ", ".join(f"{ascii(name)[1:-1]} {spell_bytes(sizes[name])}" for name in largest)
    need = -(-new_bytes // MIB)
    return Refused(
        f"{root!a} has {spell_bytes(new_bytes)} to send, more than {spell_bytes(limit_bytes)};"
        f" the largest: {named}",
        hint=f"--sync-size {need}M sends it; a line in .gflowignore leaves a folder out",
    )


def _not_taken(error: OSError) -> Refused:
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes | str) else ""
    words = f"{error.strerror}: {name!a}" if name else f"{error.strerror}"
    return Refused(
        f"the files of the job could not be copied: {words}",
        hint="a line in .gflowignore leaves a file out; --no-sync sends none",
    )


def _note(selection: Selection, new: list[Entry]) -> str:
    """Names links that leave the folder, when they are new."""
    paths = {entry.path for entry in new}
    names = [ascii(os.fsdecode(path))[1:-1] for path in selection.leaving if path in paths]
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"sent as links that leave the folder: {', '.join(names[:3])}{more}"
