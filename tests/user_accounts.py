"""User accounts for tests that need several: created by root, removed afterwards."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.harness import Box

# Two machines of one test process have different people.
_count = itertools.count()
# useradd and userdel give up when another one holds their lock for long, also one of another checkout.
ONE_AT_A_TIME = ("flock", "/etc/passwd")


@contextmanager
def people(*names: str, homes: Path | None = None) -> Iterator[list[pwd.struct_passwd]]:
    """Fresh users, named after these and this process. Skips the test where they cannot be had.

    `homes`: where their homes are made, for those that need some.
    """
    import pytest  # here: programs of tests/gpu make users where there is no pytest

    if os.getuid() != 0:
        pytest.skip("only root can make users")
    if shutil.which("useradd") is None:
        pytest.skip("there is no useradd here")
    made = []
    try:
        for name in names:
            login = f"gflow{name}{os.getpid()}x{next(_count)}"
            home = ["--home-dir", f"{homes}/{login}/home"] if homes else []
            words = [*ONE_AT_A_TIME, "useradd", "--no-create-home", "--user-group", *home, login]
            done = subprocess.run(words, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            made.append(pwd.getpwnam(login))
        if not _can_run_us(made[0]):
            pytest.skip("other users cannot reach this checkout or its Python")
        yield made
    finally:
        with suppress(FileNotFoundError):
            _hold().rmdir()
        for person in made:
            words = [*ONE_AT_A_TIME, "userdel", "--force", person.pw_name]
            path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # a test may have its own
            done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PATH": path})
            if done.returncode:
                print(f"userdel {person.pw_name}: {done.stderr}", file=sys.stderr)


def _can_run_us(person: pwd.struct_passwd) -> bool:
    words = [*become(person), sys.executable, "-c", "import gflow.cli.gflowd"]
    return subprocess.run(words, cwd="/", capture_output=True).returncode == 0


def become(person: pwd.struct_passwd) -> list[str]:
    """The beginning of a command line that runs as this person.

    Root's own folder is closed to others, and the checkout or its Python may well be in there. In a
    mount namespace of its own the command sees what it needs of such a folder, and nothing else.
    """
    return [
        *reaching_us(),
        "setpriv",
        f"--reuid={person.pw_uid}",
        f"--regid={person.pw_gid}",
        "--init-groups",
    ]


def reaching_us() -> list[str]:
    """The beginning of a command line of root that reaches this checkout and its Python as any user."""
    closed = sorted({part for path in _needed() for part in _closed(path)})
    if not closed:
        return []
    hold = _hold()
    lines = ["set -e", f"mkdir -p {hold}", f"mount -t tmpfs -o mode=755 none {hold}"]
    for number, (folder, child) in enumerate(closed):
        lines += [f"mkdir {hold}/{number}", f"mount --bind {folder}/{child} {hold}/{number}"]
    lines += [f"mount -t tmpfs -o mode=755 none {folder}" for folder in sorted({top for top, _ in closed})]
    for number, (folder, child) in enumerate(closed):
        lines += [f"mkdir {folder}/{child}", f"mount --bind {hold}/{number} {folder}/{child}"]
    return ["unshare", "--mount", "sh", "-c", "\n".join([*lines, 'exec "$@"']), "sh"]


def _hold() -> Path:
    """Where the namespace keeps things for a moment; outside it this stays an empty folder."""
    return Path(tempfile.gettempdir()) / f"gflow-hold-{os.getpid()}"


def _needed() -> list[Path]:
    return [Path(sys.executable).resolve(), Path(sys.executable).parent.resolve(), Path(__file__).resolve()]


def _closed(path: Path) -> list[tuple[str, str]]:
    """The first folder above `path` that others cannot enter, and what is needed in it."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return [(str(folder), path.relative_to(folder).parts[0])]
    return []


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that all users may enter (pytest's own is its user's alone)."""
    with tempfile.TemporaryDirectory(prefix="gflow-people-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def box_of(person: pwd.struct_passwd, root: Path) -> Box:
    """A box whose daemon and commands run as this person."""
    box = Box(root / person.pw_name)
    for folder in (box.root, box.home, box.work):
        os.chown(folder, person.pw_uid, person.pw_gid)
    box.prefix = become(person)
    box.person = person
    return box
