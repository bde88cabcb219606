"""A system daemon in folders of its own, and its users."""

from __future__ import annotations

import fcntl
import http.client
import itertools
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gflow.daemon.process import scheduler_account
from gflow.daemon.process.directories import TRUST, rewritable
from tests.harness import Box, UnixConnection
from tests.user_accounts import ONE_AT_A_TIME, box_of, people, reaching_us, shared_folder

_count = itertools.count()
FLAGS = ("--system", "--simulate-gpus", "2x80G", "--cpus", "8")


class SystemBox(Box):
    """Root's daemon for all users."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "root")
        self.machine = root
        self.data = root / "var/lib/gflow"
        self.env["GFLOW_SYSTEM_ROOT"] = str(root)
        self.daemon_prefix = tuple(reaching_us())
        if rewritable([Path(sys.executable).resolve(), Path(__file__).resolve()]) is not None:
            self.env[TRUST] = "1"  # a checkout that is not root's

    @property
    def socket(self) -> str:
        return str(self.machine / "run/gflow/gflowd.sock")

    def scheduler_pid(self) -> int:
        """The process without rights: the child of the daemon's process that is not root's."""
        assert self.daemon is not None
        children = Path(f"/proc/{self.daemon.pid}/task/{self.daemon.pid}/children").read_text().split()
        uids = {pid: Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0] for pid in children}
        (found,) = [int(pid) for pid, uid in uids.items() if uid != "0"]
        return found

    def run(self, *words: str, **more: Any) -> Any:
        """As `Box.run`. Commands that may start a daemon begin as daemons do."""
        prefix = self.prefix
        if words[0] == "gflowd":
            self.prefix = [*self.daemon_prefix, *prefix]
        try:
            return super().run(*words, **more)
        finally:
            self.prefix = prefix

    def up(self, *flags: str, env: dict[str, str] | None = None, wait: bool = True) -> Box:
        return super().up(*FLAGS, *flags, env=env, wait=wait)


class System:
    """The machine: its daemon, Ann, Bob, and Opal the operator."""

    def __init__(self, root: Path, persons: list[pwd.struct_passwd], operators: str) -> None:
        self.root = root
        self.box = SystemBox(root)
        self.box.env["GFLOW_PEOPLE__OPERATORS"] = operators
        self.ann, self.bob, self.opal = self.persons = [box_of(person, root) for person in persons]
        for box in self.persons:
            box.env |= {"GFLOW_SYSTEM_ROOT": str(root), "USER": "root"}

    def up(self, *flags: str, **more: Any) -> System:
        self.box.up(*flags, **more)
        return self

    def ask(self, box: Box, method: str, path: str, body: Any = None, *, accept: str = "") -> tuple[int, Any]:
        """One request as this person (or root): the kernel tells who connects, and as whom it runs."""
        connection = UnixConnection(self.box.socket)
        try:
            with acting_as(box.person):
                connection.request(
                    method,
                    path,
                    body if body is None or isinstance(body, bytes) else json.dumps(body),
                    {"Accept": accept} if accept else {},
                )
                response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text[:1] in (b"{", b"[") else text
        except http.client.HTTPException as error:
            raise ConnectionResetError(str(error)) from error
        finally:
            connection.close()

    def log_of(self, box: Box, job: int | str) -> str:
        path = box.home / f".local/share/gflow/logs/system/{job}.log"
        return path.read_text() if path.exists() else ""


def administer(*words: str) -> None:
    """Change the user database, as root."""
    done = subprocess.run([*ONE_AT_A_TIME, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make_scheduler_account() -> None:
    """Make the account of the scheduler, which all test runs share; it stays."""
    with open("/etc/passwd") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        scheduler_account.make("/var/lib/gflow")


@contextmanager
def acting_as(person: pwd.struct_passwd | None) -> Iterator[None]:
    """Effective rights of this person; None: as we are."""
    if person is None:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups(os.getgrouplist(person.pw_name, person.pw_gid))
    os.setegid(person.pw_gid)
    os.seteuid(person.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


@contextmanager
def system(*, env: dict[str, str] | None = None) -> Iterator[System]:
    """A machine whose daemon does not run yet; nothing of it is left afterwards."""
    operators = f"gflowops{os.getpid()}x{next(_count)}"
    with shared_folder() as root, people("ann", "bob", "opal", homes=root) as persons:
        make_scheduler_account()
        administer("groupadd", operators)
        try:
            administer("usermod", "-aG", operators, persons[2].pw_name)
            made = System(root, persons, operators)
            made.box.env |= env or {}
            try:
                yield made
            finally:
                made.box.clean_up()
        finally:
            subprocess.run([*ONE_AT_A_TIME, "groupdel", operators], capture_output=True)
