"""The adapter of this repository's gflow, installed as a user would: from a wheel, not editable.

Folder of its commands: $GFLOW_OURS_BIN. The instance lives in its own HOME and XDG folders.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.measure import NotOffered, command_line, exchange, marked, wait_until, with_descendants
from benchmarks.systems import FOREVER, System, argv, first_line_of, register

SYSTEM_SOCKET = Path("/run/gflow/gflowd.sock")
SOCKET_PATH_MAX = 100


class UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=300)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        if len(self.path) <= SOCKET_PATH_MAX:
            self.sock.connect(self.path)
            return
        # A socket's address holds 108 bytes; a longer path goes through its folder.
        folder, _, name = self.path.rpartition("/")
        fd = os.open(folder, os.O_PATH)
        try:
            self.sock.connect(f"/proc/self/fd/{fd}/{name}")
        finally:
            os.close(fd)


@register
class Ours(System):
    """gflow of this repository, as a user would install it."""

    name = "ours"
    many = 64
    batch = 100_000  # the most jobs of one request
    holder = "bench-hold"

    def __init__(self) -> None:
        super().__init__()
        self.bin = Path(os.environ.get("GFLOW_OURS_BIN", ".bench/ours-venv/bin")).resolve()
        self.flags: list[str] = []
        # Words before the command that starts the daemon.
        self.before: list[str] = []
        self.pid = 0
        self.submitted = 0  # through `bulk`
        self.held = 0

    def version(self) -> str:
        return first_line_of([self.bin / "gflow", "--version"])

    # ------------------------------------------------------------ life

    def start(self, slots: int | None = None, hold: bool = False, gpus: int = 0) -> None:
        if SYSTEM_SOCKET.exists():
            raise NotOffered(f"{SYSTEM_SOCKET} is there: the commands would speak to that daemon")
        self.stop()
        self.fresh(PATH=f"{self.bin}:/usr/local/bin:/usr/bin:/bin")
        self.env |= self.folders(
            HOME="home", XDG_CONFIG_HOME="config", XDG_DATA_HOME="data", XDG_RUNTIME_DIR="run"
        )
        self.flags = ["--cpus", str(slots or self.many)]
        if hold or gpus:
            self.flags += ["--simulate-gpus", f"{gpus or 1}x80G"]
        self.submitted = self.held = 0
        self.restart()
        if hold:
            self.hold_gpu()

    def start_with_gpus(self, count: int) -> None:
        self.start(gpus=count)

    def submit_on_gpu(self, script: str) -> None:
        connection = self.connection()
        self.post(connection, self.submission(script, gpus=1))
        connection.close()

    def restart(self) -> None:
        self.call([*self.before, f"{self.bin}/gflowd", "up", *self.flags])
        self.pid = json.loads(self.call([f"{self.bin}/gflowd", "status", "--json"]))["pid"]

    def hold_gpu(self) -> None:
        """Keep the only GPU busy, so that jobs that ask for it wait."""
        self.call([*self.gbatch(), "--gpus", "1", "--name", self.holder, *FOREVER])
        self.held = 1
        if not wait_until(lambda: self.request("GET", "/status")["running"] == 1, 10):
            raise RuntimeError("the GPU could not be taken")

    def stop(self) -> None:
        if self.pid:
            self.call([f"{self.bin}/gflowd", "down", "--kill-jobs"])
            self.pid = 0
            if left := self.sweep():
                print(f"ours: {len(left)} processes outlived `gflowd down --kill-jobs`: {left}", flush=True)

    def pids(self) -> list[int]:
        """The daemon, the zygote and the shims, without the jobs, which carry the benchmark's mark."""
        jobs = set(marked(self.mark)) - set(self.daemon_pids())
        return [pid for pid in with_descendants(self.pid) if pid not in jobs]

    def daemon_pids(self) -> list[int]:
        """One process; of the daemon for all users launcher and scheduler, which have the same command line."""
        line = command_line(self.pid)
        return [pid for pid in with_descendants(self.pid) if command_line(pid) == line]

    def state_files(self) -> list[Path]:
        return list((self.dir / "data/gflow").glob("gflow.db*"))

    # ------------------------------------------------------------ command lines

    def gbatch(self) -> list[str]:
        return [f"{self.bin}/gbatch"]

    def cmd_submit(self, script: str) -> list[str]:
        return [*self.gbatch(), *argv(script)]

    def cmd_submit_blocked(self) -> list[str]:
        return [*self.gbatch(), "--gpus", "1", "true"]

    def cmd_submit_limited(self, script: str, limit_s: int) -> list[str]:
        return [*self.gbatch(), "--time", f"0:{limit_s:02d}", *argv(script)]

    def cmd_queue(self) -> list[str]:
        return [f"{self.bin}/gqueue"]

    def cmd_queue_of(self, rows: int) -> list[str]:
        return [f"{self.bin}/gqueue", "-n", str(rows)]

    def cmd_info(self) -> list[str]:
        return [f"{self.bin}/ginfo"]

    def cmd_show(self) -> list[str]:
        return [f"{self.bin}/gjob", "show", "1"]

    def cmd_help(self) -> list[str]:
        return [f"{self.bin}/gbatch", "--help"]

    # ------------------------------------------------------------ the API

    def connection(self) -> UnixConnection:
        return UnixConnection((self.dir / "data/gflow/address").read_text().strip())

    def request(self, method: str, path: str) -> Any:
        connection = self.connection()
        try:
            return exchange(connection, method, path)
        finally:
            connection.close()

    def submission(self, script: str, count: int = 1, **options: Any) -> bytes:
        """The body of one request. A program chooses what its jobs inherit: here three variables."""
        names = ("PATH", "HOME", self.mark.partition("=")[0])
        block = "\0".join(f"{name}={self.env[name]}" for name in names)
        environ = base64.b64encode(block.encode()).decode()
        job = {"command": argv(script), "cwd": str(self.work), "umask": 0o022, "options": options}
        body = {"token": secrets.token_hex(16), "environ": environ, "jobs": [job] * count}
        return json.dumps(body).encode()

    @staticmethod
    def post(connection: HTTPConnection, body: bytes) -> None:
        """Submit, and hear the ids alone: as text, like the command line."""
        exchange(connection, "POST", "/jobs?parsable", body, accept="text/plain")

    def bulk(self, count: int, script: str, kind: str = "run") -> float:
        options = {"gpus": 1} if kind == "blocked" else {}
        connection, seconds = self.connection(), 0.0
        for first in range(0, count, self.batch):
            size = min(self.batch, count - first)
            body = self.submission(script, size, **options)
            begin = time.perf_counter()
            self.post(connection, body)
            seconds += time.perf_counter() - begin
            self.submitted += size
        connection.close()
        return seconds

    def open_client(self) -> Callable[[str], None]:
        connection = self.connection()

        def submit(script: str) -> None:
            self.post(connection, self.submission(script))

        return submit

    def done(self) -> int:
        """Cheap while jobs are left (two counts), exact once none is: those that succeeded."""
        status = self.request("GET", "/status")
        active = status["running"] + status["waiting"] - self.held
        if active:
            return int(self.submitted - active)
        return sum(job["state"] == "Finished" for job in self.jobs())

    def known(self) -> int:
        return len(self.jobs())

    def jobs(self) -> list[dict[str, Any]]:
        listed = self.request("GET", "/jobs?all=1&limit=0")["jobs"]
        return [job for job in listed if job["name"] != self.holder]


ROOT = str(Path(__file__).parents[1])
# Makes the account of the scheduler, and prints words before the daemon's: it has to read a Python below /root.
PREPARE = """
import json, sys
sys.path.append({root!r})
from gflow.daemon.process import scheduler_account
from tests.user_accounts import reaching_us
scheduler_account.make("/var/lib/gflow")
print(json.dumps(reaching_us()))
"""


@register
class OursForAll(Ours):
    """The same with the system-wide daemon: jobs are submitted by and run as the user `nobody`."""

    name = "ours-system"
    person = 65534

    def start(self, slots: int | None = None, hold: bool = False) -> None:
        if os.geteuid():
            raise NotOffered("only root runs jobs as others")
        super().start(slots, hold)

    def restart(self) -> None:
        self.env["GFLOW_SYSTEM_ROOT"] = str(self.dir / "machine")
        (self.dir / "machine").mkdir(exist_ok=True)
        for folder in (self.dir, self.work):
            folder.chmod(0o755)
        os.chown(self.work, self.person, self.person)
        if "--system" not in self.flags:
            self.flags.append("--system")
        if not self.before:
            self.before = json.loads(self.call([f"{self.bin}/python3", "-c", PREPARE.format(root=ROOT)]))
        super().restart()

    def stop(self) -> None:
        if self.pid:
            self.call([f"{self.bin}/gflowd", "down", "--system", "--kill-jobs"])
            self.pid = 0
            self.sweep()

    @contextmanager
    def as_person(self) -> Iterator[None]:
        """Connections and commands are those of the user meanwhile: the daemon runs no jobs of root."""
        before = os.geteuid()
        os.seteuid(self.person)
        try:
            yield
        finally:
            os.seteuid(before)

    def timed(self, command: list[str]) -> float:
        with self.as_person():
            return super().timed(command)

    def gbatch(self) -> list[str]:
        return [*super().gbatch(), "--output", f"{self.work}/%j.log"]  # that user has no home

    def hold_gpu(self) -> None:
        with self.as_person():
            super().hold_gpu()

    def connection(self) -> UnixConnection:
        """Connect as that user: the daemon reads the peer's uid."""
        connection = UnixConnection(str(self.dir / "machine/run/gflow/gflowd.sock"))
        with self.as_person():
            connection.connect()
        return connection

    def post(self, connection: HTTPConnection, body: bytes) -> None:  # type: ignore[override]
        """Submit as that user: the daemon also reads the limits of the process that asks."""
        with self.as_person():
            Ours.post(connection, body)

    def submission(self, script: str, count: int = 1, **options: Any) -> bytes:
        return super().submission(script, count, output=f"{self.work}/%j.log", **options)
