"""Wait for jobs, across restarts of the daemon, and derive exit codes from them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gflow.client import http
from gflow.client.retry import PATIENCE_S
from gflow.errors import Unreachable
from gflow.job_states import JobState

_WORDS = {JobState.TIMEOUT.value: "timed out"}
CODES = {state.value: state.row.exit_code for state in JobState if state.row.exit_code is not None}


def wait_for(job: str, timeout: float | None = None) -> dict[str, Any]:
    """Wait until the job is final and return it. Survives restarts of the daemon.

    Raises TimeoutError after `timeout` seconds.
    """
    away_since: float | None = None
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        if end is not None and asked >= end:
            raise TimeoutError(f"job {job} has not ended yet")
        try:
            path = http.job_path(job, "/wait")
            answer = http.get(path) if end is None else http.get_within(path, end - asked)
            final: dict[str, Any] = answer["jobs"][0]
            return final
        except TimeoutError:  # of the socket: the deadline has passed
            continue
        except (ConnectionError, Unreachable):
            now = time.monotonic()
            if away_since is None or now - asked > 1.0:  # the daemon was up until now
                away_since = now
            if now - away_since > PATIENCE_S:
                raise
            time.sleep(0.1)


def wait_for_all(
    jobs: list[str], on_count: Callable[[int, int], None] | None = None, timeout: float | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Wait for all jobs, in this order; return them and the highest exit code.

    A job that a rule stopped early counts as successful.
    `on_count` gets the number of jobs that have been waited for, and that of all. Raises TimeoutError after
    `timeout` seconds.
    """
    final: list[dict[str, Any]] = []
    end = None if timeout is None else time.monotonic() + timeout
    for job in jobs:
        if on_count is not None:
            on_count(len(final), len(jobs))
        final.append(wait_for(job, None if end is None else max(0.0, end - time.monotonic())))
    if on_count is not None:
        on_count(len(final), len(jobs))
    return final, max((exit_code_of(job) for job in final if not is_stopped_early(job)), default=0)


def is_stopped_early(job: dict[str, Any]) -> bool:
    """Whether a rule (`--stop-when`) stopped this job."""
    return job["state"] == JobState.CANCELLED.value and (job["reason"] or "").startswith("StoppedEarly")


def count_ends(jobs: list[dict[str, Any]]) -> str:
    """How jobs ended, in words: `192 finished, 8 failed`."""
    counts: dict[str, int] = dict.fromkeys((JobState.FINISHED.value.lower(),), 0)
    for job in jobs:
        word = "stopped early" if is_stopped_early(job) else _WORDS.get(job["state"], job["state"].lower())
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def describe_end(job: dict[str, Any]) -> str:
    """How a job ended that did not finish; empty: it finished."""
    if job["state"] == JobState.FINISHED.value:
        return ""
    reason = f": {job['reason']}" if job["reason"] else ""
    return f"job {job['id']} ended as {job['state']}{reason}"


def exit_code_of(job: dict[str, Any]) -> int:
    """The exit code of a command that represents this job."""
    if job["state"] in CODES:
        return CODES[job["state"]]
    if job["signal"]:
        return 128 + int(job["signal"])
    if job["exit_code"] is not None:
        return int(job["exit_code"])
    return 125
