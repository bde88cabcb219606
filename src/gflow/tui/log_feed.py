"""The log of the selected job, read in a thread: its last lines, or why the job has none."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import NamedTuple

from gflow.client import http
from gflow.errors import GflowError, clean

# Bytes read from the end of a log, and characters shown of a line.
MOST_BYTES = 1 << 18
MOST_CHARS = 2000
LOOK_AGAIN_S = 0.5
# Control sequences of terminals: colours, cursor movements, titles.
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]")


class LogView(NamedTuple):
    """What the log panel shows of a job."""

    reference: str
    title: str
    lines: tuple[str, ...]
    # Whether the newest lines matter, as in a log, or the first.
    is_log: bool = True
    # Why the job failed; empty: it did not, or the cause is not known.
    cause: str = ""


def safe_lines(content: bytes) -> tuple[str, ...]:
    """The lines as text: without control sequences; of a line with carriage returns, the last state."""
    text = CONTROL.sub("", content.decode(errors="replace"))
    return tuple(_final(line) for line in text.removesuffix("\n").split("\n")) if text else ()


def _final(line: str) -> str:
    parts = [part for part in line.split("\r") if part]
    return clean(parts[-1].expandtabs()[:MOST_CHARS]) if parts else ""


def read_end(path: str) -> tuple[str, ...]:
    """The last lines of a file; the first is dropped if it was cut."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size - MOST_BYTES)
        content = os.pread(file.fileno(), MOST_BYTES, start)
    return safe_lines(content.partition(b"\n")[2] if start else content)


def read_cause(reference: str) -> str:
    """The most probable cause of a job's end in one line; empty: none is known, or the daemon has none."""
    try:
        findings = http.get(http.job_path(reference, "/diagnosis"))["findings"]
    except GflowError:  # the daemon is older than this program
        return ""
    return clean(f"Cause: {findings[0]['summary']} (gjob why {reference})") if findings else ""


class LogFeed:
    """Publishes the log of the selected job whenever it changes."""

    def __init__(self, publish: Callable[[LogView], None]) -> None:
        self._publish = publish
        self._changed = threading.Event()
        # The selected job, and whether it has started.
        self.wanted: tuple[str, bool] = ("", False)
        self._has_failed = False
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def select(self, reference: str, *, has_started: bool, has_failed: bool = False) -> None:
        """Show this job from now on; empty: none. Of a job that has not started, why it waits."""
        if (reference, has_started, has_failed) != (*self.wanted, self._has_failed):
            self.wanted, self._has_failed = (reference, has_started), has_failed
            self._changed.set()

    def close(self) -> None:
        self._closed.set()
        self._changed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._changed.clear()
            reference, has_started = self.wanted
            try:
                if not reference:
                    self._changed.wait()
                elif has_started:
                    self._follow(reference)
                else:
                    self._explain(reference)
            except (GflowError, OSError) as error:
                self._publish(LogView(reference, f"No log of {reference}", (clean(str(error)),)))
                self._changed.wait(2.0)

    def _explain(self, reference: str) -> None:
        content = http.ask("GET", http.job_path(reference, "/why"), b"", "text/plain", {})
        self._publish(LogView(reference, f"Why {reference} waits", safe_lines(content), is_log=False))
        self._changed.wait(5.0)

    def _follow(self, reference: str) -> None:
        cause = read_cause(reference) if self._has_failed else ""
        path = str(http.get(http.job_path(reference, "/log"))["path"])
        seen: tuple[int, int] | None = None
        while not self._changed.is_set():
            try:
                status = os.stat(path)
                state = status.st_size, status.st_mtime_ns
                lines = read_end(path) if state != seen else None
            except FileNotFoundError:
                state, lines = (-1, 0), () if seen is None else None
            if lines is not None:
                seen = state
                shown = lines or ("(the log is empty)",)
                self._publish(LogView(reference, f"Log of {reference}: {path}", shown, cause=cause))
            self._changed.wait(LOOK_AGAIN_S)
