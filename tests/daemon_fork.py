"""A fork server for test daemons: one process imports the daemon, each test gets a fork of it.

Importing is four fifths of the CPU time of a daemon's start, and a test run starts more than a thousand
daemons. Only the imported modules, `/proc/PID/environ` and `/proc/PID/cmdline` are those of the server.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys

REQUEST_BYTES = 1 << 20
# The last one is what uvicorn loads by name as it starts.
MODULES = ("gflow.cli.main", "gflow.cli.daemon.lifecycle", "gflow.daemon.launch", "uvicorn.lifespan.off")


class ForkedProcess:
    """A daemon of the fork server, with the interface of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._pidfd = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self._status)
        os.close(self._pidfd)

    def poll(self) -> int | None:
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._read(timeout)) is None:
            raise subprocess.TimeoutExpired("gflowd run", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 64))
        return self.returncode


@functools.cache
def _server(prefix: tuple[str, ...] = ()) -> socket.socket:
    """The connection to this process's fork server, which has these words before its own; it ends with us."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.daemon_fork", str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    return ours


def start(words: list[str], env: dict[str, str], output: int, prefix: tuple[str, ...] = ()) -> ForkedProcess:
    """Fork a daemon that runs `gflow WORDS…` with this environment and its output to this file descriptor.

    `prefix`: words before those of the fork server.
    """
    read_end, write_end = os.pipe()
    try:
        request = json.dumps({"words": words, "env": env, "cwd": os.getcwd()}).encode()
        socket.send_fds(_server(prefix), [request], [output, write_end])
    finally:
        os.close(write_end)
    return ForkedProcess(int(_server(prefix).recv(64)), read_end)


def _serve(connection: socket.socket) -> None:
    """Fork a daemon for each request and report its exit code, until the test process ends."""
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    statuses: dict[int, tuple[int, int]] = {}
    while True:
        for ready in select.select([connection, *statuses], [], [])[0]:
            if ready is connection:
                data, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 2)
                if not data:
                    return
                pid = os.fork()
                if pid == 0:
                    _become_daemon(json.loads(data), fds[0])
                os.close(fds[0])
                statuses[os.pidfd_open(pid)] = (pid, fds[1])
                connection.send(str(pid).encode())
            else:
                pid, status = statuses.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(status, str(code).encode())
                os.close(status)
                os.close(ready)


def _become_daemon(request: dict, output: int) -> None:
    """Turn this fork into `python -m gflow WORDS…`, as a new process would begin."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    program, *words = request["words"]
    sys.argv[:] = ["gflow", *words]
    sys.orig_argv[:] = [sys.executable, "-m", "gflow", program, *words]
    from gflow.entry import main

    main(program)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
