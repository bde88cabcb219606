"""Run scripts of several threads together in one session of the connection.

A session costs a process here and several there. Scripts that come while all sessions are busy share the
next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

S = TypeVar("S")
R = TypeVar("R")
# Sessions at the same time, and scripts in one.
MAX_SESSIONS = 2
MAX_SCRIPTS = 16


class Entry(Generic[S, R]):
    """A script that waits for its result."""

    def __init__(self, script: S) -> None:
        self.script = script
        self.is_taken = False
        self.is_done = threading.Event()
        self.result: R | None = None
        self.error: BaseException | None = None


class ScriptBatches(Generic[S, R]):
    """Groups the calls of many threads. `run` gets the scripts of a group, and returns their results."""

    def __init__(self, run: Callable[[Sequence[S]], Sequence[R]]) -> None:
        self._run = run
        self._condition = threading.Condition()
        self._waiting: list[Entry[S, R]] = []
        self._sessions = 0

    def run(self, script: S) -> R:
        """The result of one script. Blocks until its group has run."""
        entry: Entry[S, R] = Entry(script)
        with self._condition:
            self._waiting.append(entry)
        while group := self._next_group(entry):
            self._run_group(group)
        entry.is_done.wait()
        if entry.error is not None:
            raise entry.error
        assert entry.result is not None
        return entry.result

    def _next_group(self, entry: Entry[S, R]) -> list[Entry[S, R]]:
        """Wait for a free session, and take a group for it; empty: another thread has taken the entry."""
        with self._condition:
            self._condition.wait_for(lambda: entry.is_taken or self._sessions < MAX_SESSIONS)
            return [] if entry.is_taken else self._take()

    def _take(self) -> list[Entry[S, R]]:
        """Take the scripts that have waited longest; the one of this thread may not be among them."""
        group, self._waiting = self._waiting[:MAX_SCRIPTS], self._waiting[MAX_SCRIPTS:]
        for entry in group:
            entry.is_taken = True
        self._sessions += 1
        return group

    def _run_group(self, group: list[Entry[S, R]]) -> None:
        try:
            results = self._run([entry.script for entry in group])
            for entry, result in zip(group, results, strict=True):
                entry.result = result
        except BaseException as error:
            for entry in group:
                entry.error = error
        finally:
            with self._condition:
                self._sessions -= 1
                self._condition.notify_all()
            for entry in group:
                entry.is_done.set()
