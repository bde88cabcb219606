"""The adapters of gflow in Rust (package `runqd`), one for each of its executors.

Folder of its commands: $GFLOW_BIN.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.measure import exchange, wait_until
from benchmarks.systems import System, argv, first_line_of, register


class Gflow(System):
    """gflow as its authors ship it."""

    executor = ""
    batch = 1000  # its server takes no more in one request
    submit_options: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.bin = Path(os.environ.get("GFLOW_BIN", ".bench/runqd-venv/bin")).resolve()
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def version(self) -> str:
        return first_line_of([self.bin / "gflowd", "--version"])

    def start(self, slots: int | None = None, hold: bool = False) -> None:
        self.stop()
        self.fresh(PATH=f"{self.bin}:/usr/local/bin:/usr/bin:/bin", SHELL="/bin/bash")
        self.env.setdefault("USER", "root")
        self.env |= self.folders(
            HOME="home",
            XDG_CONFIG_HOME="config",
            XDG_DATA_HOME="data",
            XDG_RUNTIME_DIR="run",
            TMUX_TMPDIR="tmux",
        )
        # tmux starts login shells, and /etc/profile resets PATH: without gflow's own commands on
        # it no job of the tmux executor ever ends.
        (self.dir / "home/.bash_profile").write_text(f'export PATH="{self.bin}:$PATH"\n')
        self.port = free_port()
        config = self.dir / "config/gflow/gflow.toml"
        config.parent.mkdir()
        config.write_text(
            f'[daemon]\nhost = "127.0.0.1"\nport = {self.port}\n[executor]\ntype = "{self.executor}"\n'
        )
        self.spawn()
        if hold and self.request("GET", "/info")["gpus"]:
            self.request("POST", "/gpus", {"allowed_indices": []})

    def spawn(self) -> None:
        with open(self.dir / "daemon.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "gflowd"],
                env=self.env,
                cwd=self.dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if not wait_until(self.is_up, 20):
            raise RuntimeError("gflowd did not come up")

    def is_up(self) -> bool:
        try:
            self.request("GET", "/health")
        except OSError:
            return False
        return True

    def restart(self) -> None:
        assert self.process
        self.process.wait()
        self.spawn()

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None
        self.sweep()  # its jobs, and the tmux server

    def pids(self) -> list[int]:
        return [self.process.pid] if self.process else []

    def state_files(self) -> list[Path]:
        return list((self.dir / "data/gflow").glob("state.*"))

    def cmd_submit(self, script: str) -> list[str]:
        return [f"{self.bin}/gbatch", *self.submit_options, *argv(script)]

    def cmd_submit_blocked(self) -> list[str]:
        return [f"{self.bin}/gbatch", "--gpus", "1", "true"]

    def cmd_submit_limited(self, script: str, limit_s: int) -> list[str]:
        return [f"{self.bin}/gbatch", "--time", f"0:{limit_s:02d}", *argv(script)]

    def cmd_queue(self) -> list[str]:
        return [f"{self.bin}/gqueue"]

    def cmd_info(self) -> list[str]:
        return [f"{self.bin}/ginfo"]

    def cmd_show(self) -> list[str]:
        return [f"{self.bin}/gjob", "show", "1"]

    def cmd_help(self) -> list[str]:
        return [f"{self.bin}/gbatch", "--help"]

    def connection(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=120)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        connection = self.connection()
        try:
            return exchange(connection, method, path, None if body is None else json.dumps(body).encode())
        finally:
            connection.close()

    def job(self, script: str, **more: Any) -> dict[str, Any]:
        return {
            "command": script,
            "run_dir": str(self.work),
            "gpus": 0,
            "priority": 10,
            "submitted_by": self.env["USER"],
            "state": "Queued",
            "parameters": {},
            "depends_on_ids": [],
            "auto_close_tmux": "--auto-close" in self.submit_options,
        } | more

    def bulk(self, count: int, script: str, kind: str = "run") -> float:
        more: dict[str, Any] = {}
        if kind == "serial":
            more = {"group_id": str(uuid.uuid4()), "max_concurrent": 1}
        elif kind == "blocked":
            more = {"gpus": 1}
        connection, seconds = self.connection(), 0.0
        for first in range(0, count, self.batch):
            body = json.dumps([self.job(script, **more)] * min(self.batch, count - first)).encode()
            begin = time.perf_counter()
            exchange(connection, "POST", "/jobs/batch", body)
            seconds += time.perf_counter() - begin
        connection.close()
        return seconds

    def open_client(self) -> Callable[[str], None]:
        connection = self.connection()

        def submit(script: str) -> None:
            exchange(connection, "POST", "/jobs/batch", json.dumps([self.job(script)]).encode())

        return submit

    def done(self) -> int:
        return len(self.request("GET", "/jobs?state=Finished,Failed,Cancelled,Timeout"))

    def known(self) -> int:
        return len(self.request("GET", "/jobs"))


@register
class GflowProcess(Gflow):
    """gflow in Rust with its process executor, which looks for ended jobs every 10 s."""

    name = "gflow-process"
    executor = "process"
    at_most = {"gap": 4}


@register
class GflowTmux(Gflow):
    """gflow in Rust with its tmux executor, the default; about 1 s for each start."""

    name = "gflow-tmux"
    executor = "tmux"
    at_most = {"start": 15, "start_open": 15, "throughput": 40, "gap": 20}


@register
class GflowTmuxClose(GflowTmux):
    """gflow-tmux, and each session is closed when its job ends."""

    name = "gflow-tmux-autoclose"
    submit_options = ("--auto-close",)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
