"""Waiting for jobs, across restarts of the daemon, and the exit code a job passes on."""

from __future__ import annotations

import time
from typing import Any

from gflow.client import http
from gflow.client.retry import PATIENCE_S
from gflow.errors import Unreachable

CODES = {"Timeout": 124, "Cancelled": 130}


def wait_for(job: str, timeout: float | None = None) -> dict[str, Any]:
    """The job once it is final. A daemon that restarts meanwhile is asked again.

    Raises TimeoutError if that takes more than `timeout` seconds.
    """
    away_since: float | None = None
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        if end is not None and asked >= end:
            raise TimeoutError(f"job {job} is not over yet")
        try:
            path = http.job_path(job, "/wait")
            answer = http.get(path) if end is None else http.get_within(path, end - asked)
            final: dict[str, Any] = answer["jobs"][0]
            return final
        except TimeoutError:  # the socket's: the end has come
            continue
        except (ConnectionError, Unreachable):
            now = time.monotonic()
            if away_since is None or now - asked > 1.0:  # it was there until now
                away_since = now
            if now - away_since > PATIENCE_S:
                raise
            time.sleep(0.1)


def wait_for_all(jobs: list[str]) -> tuple[list[dict[str, Any]], int]:
    """All of them once they are final, and the worst of their exit codes."""
    final = [wait_for(job) for job in jobs]
    return final, max(map(exit_code_of, final), default=0)


def exit_code_of(job: dict[str, Any]) -> int:
    """What a command that stands for this job leaves with."""
    if job["state"] in CODES:
        return CODES[job["state"]]
    if job["signal"]:
        return 128 + int(job["signal"])
    if job["exit_code"] is not None:
        return int(job["exit_code"])
    return 125
