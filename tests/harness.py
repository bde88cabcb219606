"""An environment for each test: folders, daemon, command line, and no process left behind."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import http.client
import json
import os
import pwd
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gflow.job_states import FINAL_NAMES
from gflow.targets.local.cgroups import find_layers, remove_layers
from tests import daemon_fork
from tests.waiting import wait_until as wait_until

BIN = Path(sys.executable).parent
PROGRAM = [sys.executable, "-m", "gflow", "gflowd", "run"]


# The longest start of a daemon: the host of the machine may take most of its CPU time.
START_S = 90.0


def free_port() -> int:
    """A TCP port for a daemon of this test process.

    It lies below the ephemeral range: no outgoing connection takes it before the daemon listens. The lock
    keeps other test processes from choosing it; it is held until this process ends.
    """
    folder = Path(tempfile.gettempdir(), f"gflow-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for port in random.sample(range(10_000, 17_000), 200):
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError), socket.socket() as probe:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            probe.bind(("", port))
            return port
        os.close(lock)
    raise AssertionError("no free port")


def _is_zombie(pid: str) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "Z"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("gflow", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        folder = os.open(os.path.dirname(self._path), os.O_PATH)
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/{os.path.basename(self._path)}")
        finally:
            os.close(folder)


class Box:
    """A home folder with a daemon in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.data = self.home / ".local/share/gflow"
        self.work = root / "work"
        for folder in (self.home, self.work):
            folder.mkdir(parents=True, exist_ok=True)
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }
        self.daemon: subprocess.Popen[bytes] | daemon_fork.ForkedProcess | None = None
        self.flags: list[str] = ["--paranoid"]
        # Whom it belongs to, if not to us (see tests/user_accounts.py).
        self.person: pwd.struct_passwd | None = None
        self.prefix: list[str] = []
        # Done in the daemon's process before it becomes the daemon.
        self.preexec: Callable[[], None] | None = None
        self.program: list[str] = PROGRAM
        # Words before those of the daemon's process, and of the process that forks it.
        self.daemon_prefix: tuple[str, ...] = ()

    # ------------------------------------------------------------ daemon

    def up(self, *flags: str, env: dict[str, str] | None = None, wait: bool = True) -> Box:
        """Start a daemon in the foreground of no terminal; returns when it serves."""
        if flags:
            self.flags = ["--paranoid", *flags]
        with (self.root / "daemon.log").open("ab") as log:
            self.daemon = self._start(self.env | (env or {}), log.fileno())
        if wait:
            wait_until(self.serves, START_S, f"the daemon to serve; its log says: {self.log()}")
        return self

    def _start(self, env: dict[str, str], log: int) -> subprocess.Popen[bytes] | daemon_fork.ForkedProcess:
        """Fork a daemon, or execute one if the test changes how the process begins."""
        is_usual = self.program == PROGRAM and not self.prefix and self.preexec is None
        # Variables that the dynamic loader, Python or `gflow.fault_points` reads once, as a process begins.
        if is_usual and not any(name.startswith(("LD_", "PYTHON", "GFLOW_FAULT")) for name in env):
            return daemon_fork.start([*self.program[3:], *self.flags], env, log, self.daemon_prefix)
        words = [*self.prefix, *self.daemon_prefix, *self.program, *self.flags]
        return subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=self.preexec
        )

    def serves(self) -> bool:
        assert self.daemon is not None
        if self.daemon.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.daemon.returncode}: {self.log()}")
        try:
            return self.api("GET", "/health")[0] == 200
        except OSError:
            return False

    def log(self) -> str:
        path = self.root / "daemon.log"
        return path.read_text()[-2000:] if path.exists() else ""

    def kill9(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def down(self) -> None:
        if self.daemon and self.daemon.poll() is None:
            self.daemon.terminate()
            assert self.daemon.wait(20) == 0, self.log()

    def clean_up(self) -> None:
        """End the daemon and whatever else still lives in this box."""
        if self.daemon and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()
        wait_until(self._kill_everything, what="the end of the box's processes")
        self._remove_control_groups()

    def control_groups(self) -> list[Path]:
        """Folders of control groups of this box: those of runs, then those they are in."""
        tag = hashlib.blake2b(str(self.data / "run").encode(), digest_size=6).hexdigest()
        layers = find_layers(tag)
        remove_layers(layers)
        bases = [Path(base) for base in layers.folders if os.path.isdir(base)]
        return [folder for base in bases for folder in base.glob("*/")] + bases

    def _remove_control_groups(self) -> None:
        """A daemon that is killed leaves its folders to the next one, and a box has no next one."""
        for folder in self.control_groups():
            with suppress(OSError):
                folder.rmdir()

    def _kill_everything(self) -> bool:
        found = self.processes()
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not found

    def processes(self) -> list[int]:
        """Processes that have this box's home in their environment, or its run folder in their files."""
        marks = (f"HOME={self.home}".encode(), f"{self.data}/run".encode())
        found = []
        # Files of all processes of the machine are read here, after each test: pathlib takes twice the time.
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                with suppress(OSError):
                    with open(f"/proc/{entry}/environ", "rb", buffering=0) as file:
                        text = file.read()
                    if any(mark in text for mark in marks) and not _is_zombie(entry):
                        found.append(int(entry))
        return found

    # ------------------------------------------------------------ command line

    def run(
        self,
        *words: str,
        input: str | None = None,
        cwd: Path | None = None,
        env: Any = None,
        timeout_s: float = 60,
    ) -> Any:
        """Run one of our programs; `.stdout`, `.stderr`, `.returncode`."""
        return subprocess.run(
            [*self.prefix, str(BIN / words[0]), *words[1:]],
            env=self.env | (env or {}),
            cwd=cwd or self.work,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def run_shell(self, line: str, cwd: Path | None = None) -> Any:
        """Run a line in bash, with our programs on its PATH."""
        return subprocess.run(
            ["bash", "-c", line],
            env=self.env,
            cwd=cwd or self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def ok(self, *words: str, **more: Any) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*words, **more)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *words: str, **more: Any) -> int:
        """The id of a job submitted by gbatch."""
        return int(self.ok("gbatch", "--parsable", *words, **more))

    # ------------------------------------------------------------ API

    @property
    def socket(self) -> str:
        return str(self.data / "gflowd.sock")

    def api(self, method: str, path: str, body: Any = None, accept: str = "*/*") -> tuple[int, Any]:
        """One request; status and JSON (or bytes, where the answer is none)."""
        connection = UnixConnection(self.socket)
        try:
            data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Accept": accept})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text[:1] in b"{[" and text else text
        except http.client.HTTPException as error:
            raise ConnectionResetError(str(error)) from error
        finally:
            connection.close()

    def job_request(self, command: Sequence[str], **options: Any) -> dict[str, Any]:
        environ = b"PATH=/usr/bin:/bin\0HOME=" + str(self.home).encode()
        return {
            "command": list(command),
            "cwd": str(self.work),
            "environ": base64.b64encode(environ).decode(),
            "options": options,
        }

    def jobs(self) -> dict[Any, dict[str, Any]]:
        """All jobs by id."""
        status, answer = self.api("GET", "/jobs?all=1&limit=0")
        assert status == 200, answer
        return {job["id"]: job for job in answer["jobs"]}

    def job(self, number: int | str) -> dict[str, Any]:
        status, answer = self.api("GET", f"/jobs/{number}")
        assert status == 200, answer
        job: dict[str, Any] = answer["jobs"][0]
        return job

    def finished(self, number: int | str, timeout_s: float = 60) -> dict[str, Any]:
        """The job once it is final."""
        return wait_until(
            lambda: (job := self.job(number))["state"] in FINAL_NAMES and job,
            timeout_s,
            f"the end of job {number}",
        )

    def text_of(self, number: int | str) -> str:
        """The job's log; empty before its first line."""
        path = self.data / f"logs/{number}.log"
        return path.read_text() if path.exists() else ""

    def output_of(self, number: int | str) -> str:
        """The job's log without the last line, if that says how gflow ended the job."""
        return re.sub(rf"gflow: job {number} .*\n\Z", "", self.text_of(number))
