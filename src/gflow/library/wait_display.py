"""The progress display of a wait: a line on a terminal, a table in a notebook."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gflow.client import http
from gflow.client.wait import wait_for
from gflow.errors import Unreachable
from gflow.job_states import FINAL_NAMES
from gflow.library.job_table import job_table, metrics_text, progress_text

# Seconds between refreshes, and jobs per request; more jobs are refreshed less often.
REFRESH_S = 1.0
SHORTEST_S = 0.2
PART = 500
WIDTH = 20

Show = Callable[[Sequence[Mapping[str, Any]], int], None]


def wait_showing(ids: Sequence[str], timeout: float | None, show: Show | None = None) -> list[dict[str, Any]]:
    """Wait for the end of all jobs and show how far they are; returns them as they ended.

    Raises TimeoutError after `timeout` seconds.
    """
    show = show or choose_display()
    end = None if timeout is None else time.monotonic() + timeout
    known: dict[str, dict[str, Any]] = {}
    while True:
        asked = time.monotonic()
        left = [id for id in ids if not _has_ended(known.get(id))]
        for at in range(0, len(left), PART):
            known |= _listed(left[at : at + PART])
        show(list(known.values()), len(ids))
        left = [id for id in left if not _has_ended(known.get(id))]
        if not left:
            return [known[id] for id in ids]
        pause = REFRESH_S * (1 + len(left) // PART)
        try:
            known[left[0]] = wait_for(left[0], pause if end is None else min(pause, end - asked))
        except TimeoutError:
            if end is not None and time.monotonic() >= end:
                raise
        time.sleep(max(0.0, SHORTEST_S - (time.monotonic() - asked)))  # many short jobs end in a row


def _has_ended(job: Mapping[str, Any] | None) -> bool:
    return job is not None and job["state"] in FINAL_NAMES


def _listed(ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """These jobs as they are now. An array is listed by its tasks: `wait_for` returns the array itself."""
    try:
        found = http.get("/jobs", jobs=",".join(ids), all="1", limit="0")["jobs"]
    except (ConnectionError, Unreachable):  # the daemon restarts: `wait_for` waits until it is back
        return {}
    return {str(job["id"]): job for job in found if str(job["id"]) in set(ids)}


def summary(jobs: Sequence[Mapping[str, Any]], total: int) -> str:
    """One line: `[====      ] 3 of 8 ended (1 Failed), 2 Running, 3 Queued`."""
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job["state"]] = counts.get(job["state"], 0) + 1
    ended = sum(count for state, count in counts.items() if state in FINAL_NAMES)
    bad = [f"{counts[state]} {state}" for state in counts if state in FINAL_NAMES and state != "Finished"]
    active = [f"{counts[state]} {state}" for state in counts if state not in FINAL_NAMES]
    text = f"{ended} of {total} ended" + (f" ({', '.join(bad)})" if bad else "")
    filled = WIDTH * ended // max(1, total)
    parts = [text, *active, *_report(jobs)]
    return f"[{'=' * filled}{' ' * (WIDTH - filled)}] {', '.join(parts)}"


def _report(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The last report of the job that runs, if it is the only one."""
    running = [job for job in jobs if job["state"] == "Running"]
    if len(running) != 1:
        return []
    return [text for text in (progress_text(running[0]), metrics_text(running[0])) if text]


# ---------------------------------------------------------------- displays


def choose_display() -> Show:
    """A table in a notebook, a line that is rewritten on a terminal, otherwise a line for each change."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and hasattr(shell, "kernel"):
        return notebook_display()
    return terminal_display() if sys.stderr.isatty() else plain_display()


def notebook_display() -> Show:
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)

    def show(jobs: Sequence[Mapping[str, Any]], total: int) -> None:
        handle.update(HTML(page(jobs, total)))

    return show


def page(jobs: Sequence[Mapping[str, Any]], total: int) -> str:
    """The progress in HTML: a bar, and the table of the jobs."""
    ended = sum(map(_has_ended, jobs))
    return f'<progress value="{ended}" max="{total}"></progress> {ended} of {total} ended{job_table(jobs)}'


def terminal_display() -> Show:
    def show(jobs: Sequence[Mapping[str, Any]], total: int) -> None:
        text = summary(jobs, total)[: shutil.get_terminal_size().columns - 1]
        is_last = len(jobs) == total and all(map(_has_ended, jobs))
        sys.stderr.write(f"\r{text}\033[K" + ("\n" if is_last else ""))
        sys.stderr.flush()

    return show


def plain_display() -> Show:
    before = [""]

    def show(jobs: Sequence[Mapping[str, Any]], total: int) -> None:
        text = summary(jobs, total)
        if text != before[0]:
            before[0] = text
            sys.stderr.write(text + "\n")

    return show
