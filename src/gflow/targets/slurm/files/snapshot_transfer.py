"""Send snapshots to a cluster, and delete old ones there.

    FOLDER/PROJECT/TREE.TOKEN     the files of one submission, in which its jobs run
    FOLDER/PROJECT/.TREE.TOKEN    the same while it is sent: no job sees a part of it

Only files that the last snapshot there does not have travel. The others are copied there, so that a job may
change its files and no other job sees it; or they are hard links to files that are read-only (`links`).
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
import threading
import time
from typing import IO, NamedTuple

import msgspec

from gflow.targets.port import Launch
from gflow.targets.slurm.commands.command_runner import CommandResult, Runner
from gflow.targets.slurm.files.local_snapshots import (
    Index,
    LocalSnapshots,
    SnapshotId,
    parse_id,
    project_name,
)
from gflow.targets.slurm.files.rsync import PROGRESS, Rsync, parse_progress
from gflow.targets.slurm.ssh.ssh_runner import SshRunner

# Snapshots of each project that stay when their jobs have ended.
KEEP = 3
# Bytes of rsync's output that have its latest progress.
SHOWN_TAIL = 4096
TIMEOUT_S = 120.0
NS = 1_000_000_000
NAME = re.compile(r"[0-9]+-[0-9]+-[0-9a-f]+\.[0-9a-f]+")

# Scripts for the shell there. Arguments: the folder of the project, the name of the snapshot.
LOOK = """mkdir -p -- "$1" && cd -- "$1" || exit 1
if [ -d "$2" ]; then echo there; else ls -1; fi"""
FINISH = """cd -- "$1" && { [ -d "$2" ] || mv -- ".$2" "$2"; }"""
# Lists the time, and size, mtime and path of all files below a folder. Base64, as names are bytes.
LIST = """[ -d "$1" ] || { [ ! -d "${1%/*}" ] || echo gone; exit 0; }
cd -- "$1" && date +%s || exit 1
{ find . \\( -type f -o -type l \\) -printf '%s %T@ %P\\0' && echo end; } | base64"""
# Deletes the files that the standard input names, and folders that are empty then. Files of the job stay,
# with a mark, so that they are not looked at again.
DELETE = """cd -- "$1/$2" && base64 -d | xargs -0 rm -f -- && cd .. || exit 1
find "./$2" -depth -type d -empty -delete
[ ! -d "$2" ] || : >".$2.pruned\""""
DELETE_PART = """cd -- "$1" && rm -rf -- ".$2\""""
# Lists the age in seconds and the name of each snapshot.
LIST_SNAPSHOTS = """cd -- "$1" 2>/dev/null || exit 0
date +%s
find . -mindepth 2 -maxdepth 2 -printf '%C@ %P\\n'"""
# Snapshots that changed within so many seconds are left alone: their job may not be known yet.
YOUNG_S = 3600.0


class Sent(NamedTuple):
    """Whether a snapshot is there; else one sentence, and whether it can never be sent."""

    ok: bool
    error: str = ""
    is_final: bool = False


class RemoteFile(NamedTuple):
    """A file there: its path below the folder that was listed, size and mtime."""

    path: bytes
    size: int
    mtime_ns: int


class SnapshotTransfer:
    """Sends snapshots to one cluster, and deletes old ones there. One call at a time."""

    def __init__(
        self, runner: Runner, folder: str, snapshots: LocalSnapshots, *, links: bool = False
    ) -> None:
        self._runner, self._folder, self._snapshots, self._links = runner, folder, snapshots, links
        self._rsync = Rsync(runner)
        self._lock = threading.Lock()
        # What rsync shows of the latest transfer.
        self._shown: IO[bytes] | None = None

    def send(self, snapshot: SnapshotId) -> Sent:
        """Send a snapshot unless it is there. It has its name only when it is complete."""
        with self._lock:
            return self._send(snapshot)

    def _send(self, snapshot: SnapshotId) -> Sent:
        place, name = f"{self._folder}/{snapshot.project}", f"{snapshot.tree}.{snapshot.token}"
        looked = run_shell(self._runner, LOOK, place, name)
        if not looked.ok:
            return Sent(False, looked.error.strip() or f"{place} cannot be used")
        if looked.text == "there\n":
            return Sent(True)
        source = self._snapshots.path(snapshot)
        if not source.is_dir() or not self._snapshots.is_whole(snapshot):
            return Sent(False, "the copy of its files is gone here: submit the job again", True)
        known = sorted(one for one in looked.text.split("\n") if NAME.fullmatch(one))
        words = ["-rlpt", "--omit-dir-times", *PROGRESS, *self._base(known), "--", f"{source}/"]
        # Open until the next transfer, as `progress` reads it.
        self._shown = tempfile.TemporaryFile()  # noqa: SIM115
        result = self._rsync.run([*words, self._rsync.there(f"{place}/.{name}/")], output=self._shown)
        if not result.ok:
            return Sent(False, result.error)
        finished = run_shell(self._runner, FINISH, place, name)
        return Sent(finished.ok, finished.error.strip())

    def progress(self) -> str:
        """How much the transfer under way has copied; empty: not known. Called by another thread."""
        shown = self._shown
        if shown is None:
            return ""
        size = os.fstat(shown.fileno()).st_size
        return parse_progress(os.pread(shown.fileno(), SHOWN_TAIL, max(0, size - SHOWN_TAIL)))

    def _base(self, known: list[str]) -> list[str]:
        """Options that take unchanged files from the last snapshots there, at most two."""
        option = "--link-dest" if self._links else "--copy-dest"
        chmod = ["--chmod=Fu-w"] if self._links else []
        return [*chmod, *(f"{option}=../{name}" for name in reversed(known[-2:]))]

    def prune(self, used: set[str]) -> set[str]:
        """Delete what gflow sent from snapshots that no unfinished job uses; the ids of those that stay.

        The last snapshots of each project stay. A file that a job wrote or changed is never deleted.
        """
        kept = set[str]()
        with self._lock:
            for project, names in self._list().items():
                complete = sorted(name for name in names if NAME.fullmatch(name))
                for name in names:
                    id = f"{project}/{name.removeprefix('.')}"
                    is_free = id not in used and name not in complete[-KEEP:] and names[name] > YOUNG_S
                    if not (is_free and self._delete(parse_id(id), is_part=name.startswith("."))):
                        kept.add(id)
        return kept

    def _list(self) -> dict[str, dict[str, float]]:
        """The ages of the snapshots there that were not pruned yet, by name, by project."""
        listed = run_shell(self._runner, LIST_SNAPSHOTS, self._folder)
        if not listed.ok:
            raise OSError(listed.error.strip() or "the snapshots cannot be listed")
        now, *lines = listed.text.splitlines() or ["0"]
        found: dict[str, dict[str, float]] = {}
        pruned = {line.split(" ", 1)[1] for line in lines if line.endswith(".pruned")}
        for line in lines:
            changed, _, path = line.partition(" ")
            project, _, name = path.partition("/")
            if NAME.fullmatch(name.removeprefix(".")) and f"{project}/.{name}.pruned" not in pruned:
                found.setdefault(project, {})[name] = float(now) - float(changed)
        return found

    def _delete(self, snapshot: SnapshotId, *, is_part: bool) -> bool:
        """Delete the files of a snapshot that are as they were sent. False: it stays for now."""
        place, name = f"{self._folder}/{snapshot.project}", f"{snapshot.tree}.{snapshot.token}"
        if is_part:
            return run_shell(self._runner, DELETE_PART, place, name).ok
        index = self._snapshots.read_index(snapshot.project, snapshot.tree)
        if not index:  # what was sent is not known
            return False
        listing = list_files(self._runner, f"{place}/{name}")
        doomed = [one.path for one in listing.files if not is_changed(one, index)]
        text = base64.b64encode(b"".join(b"./" + path + b"\0" for path in doomed)).decode()
        return run_shell(self._runner, DELETE, place, name, input=text).ok


def run_shell(runner: Runner, script: str, *arguments: str, input: str = "") -> CommandResult:
    """Run a script of the POSIX shell there. The arguments reach it as words, whatever they contain."""
    words = ["sh", "-c", script, "sh", *arguments]
    environ = {} if isinstance(runner, SshRunner) else {"PATH": os.environ.get("PATH", os.defpath)}
    return runner.run(words, timeout_s=TIMEOUT_S, environ=environ, input=input)


class Listing(NamedTuple):
    """Files below a folder there, and by how many seconds the clock there is ahead."""

    files: list[RemoteFile]
    ahead_s: float


def list_files(runner: Runner, folder: str) -> Listing:
    """All files below a folder there. FileNotFoundError: there is no such folder; OSError: no answer."""
    result = run_shell(runner, LIST, folder)
    if result.text == "gone\n":
        raise FileNotFoundError(folder)
    now, _, packed = result.text.partition("\n")
    *records, end = base64.b64decode(packed).split(b"\0")
    if not result.ok or end != b"end\n":
        raise OSError(result.error.strip() or f"{folder} is not there now")
    return Listing([_parse(record) for record in records], int(now) - time.time())


def _parse(record: bytes) -> RemoteFile:
    size, mtime, path = record.split(b" ", 2)
    seconds, _, fraction = mtime.partition(b".")
    return RemoteFile(path, int(size), int(seconds) * NS + int(fraction[:9].ljust(9, b"0") or b"0"))


def is_changed(file: RemoteFile, index: Index, prefix: bytes = b"") -> bool:
    """Whether a file there differs from what was sent, by size and mtime. `prefix`: its folder."""
    row = index.get(prefix + file.path)
    if row is None or row.size != file.size:
        return True
    # A file system may keep whole seconds, or microseconds.
    return not any(file.mtime_ns == row.mtime_ns // unit * unit for unit in (1, 1000, NS))


def folder_of(snapshot: str, folder: str) -> str:
    """The folder of a snapshot there."""
    parsed = parse_id(snapshot)
    return f"{folder}/{parsed.project}/{parsed.tree}.{parsed.token}"


def in_snapshot(launch: Launch, folder: str, *, has_logs: bool) -> Launch:
    """The launch with its working directory and its script in its snapshot there; with `has_logs` also logs.

    A job that is not submitted yet has no snapshot: a preview shows `NEW`.
    """
    spec = launch.job.spec
    if not spec.sync:
        return launch
    root = folder_of(spec.snapshot, folder) if spec.snapshot else f"{folder}/{project_name(spec.sync)}/NEW"

    def move(path: str) -> str:
        is_inside = f"{path}/".startswith(spec.sync.rstrip("/") + "/")
        return os.path.normpath(f"{root}/{os.path.relpath(path, spec.sync)}") if is_inside else path

    script_path = move(spec.script_path)
    moved = msgspec.structs.replace(
        spec, cwd=move(spec.cwd), script_path="" if script_path == spec.script_path else script_path
    )
    launch = launch._replace(job=msgspec.structs.replace(launch.job, spec=moved))
    if has_logs:
        launch = launch._replace(log=move(launch.log), error_log=move(launch.error_log))
    return launch
