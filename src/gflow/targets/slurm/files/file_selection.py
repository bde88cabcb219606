"""Select the files of a project that are sent to a cluster.

In a git repository these are the tracked files and the untracked ones that git does not ignore; elsewhere all
files. Files that match a `.gflowignore` are left out. git itself reads both kinds of patterns, so that they
mean the same as in `.gitignore`. Names are bytes: any name that the file system allows works.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gflow.errors import Refused

IGNORE_FILE = b".gflowignore"
GIT = b".git"
# Seconds for one call of git.
TIMEOUT_S = 60.0
# An object id for entries of a temporary index. git does not look the object up.
NO_OBJECT = b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


class Entry(NamedTuple):
    """A file or a symbolic link: the path below the project's folder, and its status."""

    path: bytes
    stat: os.stat_result

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.stat.st_mode)


class Selection(NamedTuple):
    """The files to send, sorted by path; symbolic links that leave the folder; sockets, pipes, devices."""

    entries: list[Entry]
    leaving: list[bytes]
    skipped: list[bytes]


def select(root: str) -> Selection:
    """Select the files below `root`. Raises Refused if that is not possible."""
    top = os.fsencode(os.path.abspath(root))
    if not os.path.isdir(top):
        raise Refused(f"there is no folder {root!a} to send")
    paths = sorted(set(_paths(top)))
    ignored = _ignored(top, paths)
    return _with_status(top, [path for path in paths if path not in ignored])


def _with_status(top: bytes, paths: Iterable[bytes]) -> Selection:
    entries, leaving, skipped = list[Entry](), list[bytes](), list[bytes]()
    for path in paths:
        try:
            status = os.lstat(top + b"/" + path)
        except (FileNotFoundError, NotADirectoryError):  # git still lists a file that was deleted
            continue
        if stat.S_ISREG(status.st_mode):
            entries.append(Entry(path, status))
        elif stat.S_ISLNK(status.st_mode):
            entries.append(Entry(path, status))
            if _leaves(path, os.readlink(top + b"/" + path)):
                leaving.append(path)
        elif not stat.S_ISDIR(status.st_mode):
            skipped.append(path)
    return Selection(entries, leaving, skipped)


def _leaves(path: bytes, target: bytes) -> bool:
    """Whether a link with this target points out of the folder."""
    whole = os.path.normpath(os.path.join(os.path.dirname(path) or b".", target))
    return target.startswith(b"/") or whole == b".." or whole.startswith(b"../")


def _paths(top: bytes) -> Iterator[bytes]:
    """The paths below a folder, without those that git ignores. Never `.git`."""
    found = _listed_by_git(top) if _is_in_repository(top) else _walk(top)
    for path in found:
        if GIT in path.split(b"/"):
            continue
        below = top + b"/" + path.rstrip(b"/")
        if os.path.isdir(below) and not os.path.islink(below):  # a submodule, or a repository inside
            inner = path.rstrip(b"/")
            yield from (inner + b"/" + one for one in _paths(below))
        else:
            yield path


def _is_in_repository(folder: bytes) -> bool:
    while not os.path.lexists(folder + b"/" + GIT):
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
    return True


def _listed_by_git(top: bytes) -> list[bytes]:
    words = ["-C", os.fsdecode(top), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    return _run_git(words).split(b"\0")[:-1]


def _walk(top: bytes, below: bytes = b"") -> Iterator[bytes]:
    """All files of a folder that is in no repository. A repository inside is yielded as one path."""
    with os.scandir(top + b"/" + below if below else top) as entries:
        for entry in entries:
            path = below + b"/" + entry.name if below else entry.name
            if not entry.is_dir(follow_symlinks=False):
                yield path
            elif entry.name != GIT:
                is_repository = os.path.lexists(entry.path + b"/" + GIT)
                yield from [path] if is_repository else _walk(top, path)


def _ignored(top: bytes, paths: list[bytes]) -> set[bytes]:
    """The paths that a `.gflowignore` matches: git compares them with a temporary index."""
    has_one = os.path.lexists(top + b"/" + IGNORE_FILE)
    if not has_one and not any(os.path.basename(path) == IGNORE_FILE for path in paths):
        return set()
    with tempfile.TemporaryDirectory(prefix="gflow-index-") as folder:
        for name in ("objects", "refs"):
            os.mkdir(f"{folder}/{name}")
        with open(f"{folder}/HEAD", "w") as head:
            head.write("ref: refs/heads/none\n")
        words = ["-C", os.fsdecode(top), f"--git-dir={folder}", f"--work-tree={os.fsdecode(top)}"]
        rows = b"".join(b"100644 " + NO_OBJECT + b"\t" + path + b"\0" for path in paths)
        _run_git([*words, "update-index", "-z", "--index-info"], rows)
        listing = [
            *words,
            "ls-files",
            "-z",
            "-c",
            "-i",
            f"--exclude-per-directory={os.fsdecode(IGNORE_FILE)}",
        ]
        return set(_run_git(listing).split(b"\0"))


def _run_git(words: list[str], input: bytes = b"") -> bytes:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *words],
            input=input,
            capture_output=True,
            env=environ,
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError:
        raise Refused(
            "git is not installed on this machine, and it selects the files to send",
            hint="install git, or submit with --no-sync",
        ) from None
    except subprocess.TimeoutExpired:
        raise Refused(
            f"git did not list the files in {TIMEOUT_S:.0f} s", hint="--no-sync sends none"
        ) from None
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()
        raise Refused(
            f"git cannot list the files to send: {complaint[-1] if complaint else 'it failed'}",
            hint="git status shows the cause; --no-sync sends no files",
        )
    return done.stdout
