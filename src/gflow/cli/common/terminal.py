"""Terminals of jobs, as the commands use them: reach one, sit there, run a command beside a job."""

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
from gflow.wire.terminal_protocol import reach

ACTIVE = ("Queued", "Hold", "Running")
# A terminal is there a moment after its job runs.
COMING_S = 10.0


def reached(job: str, between: Callable[[], None] = lambda: None) -> socket.socket | None:
    """A connection to the job's terminal, as soon as it has one; None: the job is over."""
    running_since: float | None = None
    while True:
        place = http.get(http.job_path(job, "/terminal"))
        if place["state"] not in ACTIVE:
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


def seated(program: str, job: str, sock: socket.socket, *, is_host: bool) -> bool:
    """Sit at the job's terminal until it is over; False: we left before."""
    with sock:
        try:
            terminal.sit(sock, is_tty=True, is_host=is_host, may_leave=not is_host)
        except terminal.Left:
            sys.stderr.write(f"\r\n{program}: job {job} goes on; gjob attach {job} comes back\n")
            return False
    return True


def attach(job: str) -> int | None:
    """Sit at a job's terminal until it is over or we leave; None: it has none, or we are not at one."""
    if not terminal.is_terminal():
        return None
    place = http.get(http.job_path(job, "/terminal"))
    if place["path"] is None:
        return None
    sys.stderr.write(f"gjob: this is the terminal of job {place['job_id']}; Ctrl-\\ leaves it\n")
    sock = reached(str(place["job_id"]))
    if sock is None or not seated("gjob", str(place["job_id"]), sock, is_host=False):
        return 0
    from gflow.client.wait import exit_code_of, wait_for

    return exit_code_of(wait_for(str(place["job_id"])))


def execute(values: dict[str, Any], words: list[str]) -> int:
    """Run a command beside a job; its exit code."""
    job, command = words[0], words[2:] if words[1:2] == ["--"] else words[1:]
    if not command:
        raise UsageError("there is no command to run", hint="gjob exec 42 -- nvidia-smi")
    is_tty = "no-tty" not in values and terminal.is_terminal()
    body = {"command": command, "tty": is_tty, "term": os.environ.get("TERM", "") if is_tty else ""}
    path = http.post(http.job_path(job, "/exec"), body)["path"]
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
        code = terminal.sit(sock, is_tty=is_tty, is_host=True, may_leave=False)
    if code is None:
        sys.stderr.write(f"gjob: the command ended with job {job}\n")
        return 125
    return code if code >= 0 else 128 - code
