"""Terminals of jobs, for the commands: connect to one, attach to it, execute a command in a job."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from gflow.client import http, terminal
from gflow.client.logs import LOOK_AGAIN_S
from gflow.errors import UsageError
from gflow.job_states import ACTIVE_NAMES
from gflow.wire.terminal_protocol import reach

# Seconds after the start of a job within which its terminal must accept connections.
COMING_S = 10.0


def connect(job: str, between: Callable[[], None] = lambda: None) -> socket.socket | None:
    """Wait for the job's terminal and connect to it; None if the job has ended."""
    running_since: float | None = None
    while True:
        place = http.get(http.job_path(job, "/terminal"))
        if place["state"] not in ACTIVE_NAMES:
            return None
        if place["path"] is not None:
            running_since = running_since or time.monotonic()
            try:
                return reach(place["path"])
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() - running_since > COMING_S:
                    raise
        between()
        time.sleep(LOOK_AGAIN_S)


def attach_to(program: str, job: str, sock: socket.socket, *, is_host: bool) -> bool:
    """Attach to the job's terminal until the job ends; False if the user detached before."""
    with sock:
        try:
            terminal.relay(sock, is_tty=True, is_host=is_host, may_leave=not is_host)
        except terminal.Detached:
            sys.stderr.write(
                f"\r\n{program}: detached; job {job} is still running (gjob attach {job} returns to it)\n"
            )
            return False
    return True


def attach(job: str) -> int | None:
    """Attach to a job's terminal until the job ends or the user detaches.

    None if the job has no terminal, or standard input and output are none.
    """
    if not terminal.is_terminal():
        return None
    place = http.get(http.job_path(job, "/terminal"))
    if place["path"] is None:
        return None
    sys.stderr.write(f"gjob: attached to the terminal of job {place['job_id']}; Ctrl-\\ detaches\n")
    sock = connect(str(place["job_id"]))
    if sock is None or not attach_to("gjob", str(place["job_id"]), sock, is_host=False):
        return 0
    from gflow.client.wait import exit_code_of, wait_for

    return exit_code_of(wait_for(str(place["job_id"])))


def execute(values: dict[str, Any], words: list[str]) -> int:
    """Execute a command in a job's environment; return its exit code."""
    job, command = words[0], words[2:] if words[1:2] == ["--"] else words[1:]
    if not command:
        raise UsageError("there is no command to run", hint="gjob exec 42 -- nvidia-smi")
    is_tty = "no-tty" not in values and terminal.is_terminal()
    body = {"command": command, "tty": is_tty, "term": os.environ.get("TERM", "") if is_tty else ""}
    made = http.post(http.job_path(job, "/exec"), body)
    if made.get("step") is not None:
        from gflow.cli.common.cluster_step import run_step

        return run_step(made["step"], is_tty=is_tty)
    path = made["path"]
    until = time.monotonic() + COMING_S
    while True:
        try:
            sock = reach(path)
            break
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
    with sock:
        code = terminal.relay(sock, is_tty=is_tty, is_host=True, may_leave=False)
    if code is None:
        sys.stderr.write(f"gjob: the command was ended because job {job} ended\n")
        return 125
    return code if code >= 0 else 128 - code
