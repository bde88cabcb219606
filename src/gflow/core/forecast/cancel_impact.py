"""Cancel impact: which jobs could never start if others were cancelled."""

from __future__ import annotations

from collections.abc import Iterable

from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.state.dependencies import Wait
from gflow.core.state.state import State


def blocked_by(state: State, keys: Iterable[JobKey]) -> dict[JobKey, list[JobKey]]:
    """Jobs that could never start if these were cancelled, each with the parents that it loses."""
    blocked = Blocked(state, keys)
    blocked.search(None)
    return blocked.found()


class Blocked:
    """A search for jobs that could never start if others were cancelled; can be run in parts.

    A job is blocked if it loses a parent that must succeed, or all parents of which one must.
    """

    def __init__(self, state: State, keys: Iterable[JobKey]) -> None:
        self._state = state
        self._doomed = set(keys)
        self._lost = set(self._doomed)
        self._blocked: set[JobKey] = set()
        self._seen: set[int] = set()
        self._stack = list(self._doomed)

    def search(self, most: int | None) -> bool:
        """Follow at most `most` jobs (None: all); whether there are more."""
        stack = self._stack
        while stack and (most is None or most > 0):
            most = None if most is None else most - 1
            for parent in _ended_with(self._state, stack.pop()):
                self._lost.add(parent)
                for wait in self._state.dependencies.children.get(parent, {}).values():
                    self._block(wait)
        return bool(stack)

    def _block(self, wait: Wait) -> None:
        if id(wait) in self._seen or not _is_blocked(wait, self._lost):
            return
        self._seen.add(id(wait))
        for child in wait.jobs:
            if child in self._doomed:
                continue
            self._blocked.add(child)
            if not self._state.jobs[child].spec.no_auto_cancel:  # such a job would keep waiting, not end
                self._stack.append(child)

    def found(self) -> dict[JobKey, list[JobKey]]:
        """The blocked jobs, each with the parents that it loses. Jobs that share a Wait share the list."""
        losses: dict[int, list[JobKey]] = {}
        found: dict[JobKey, list[JobKey]] = {}
        for child in sorted(self._blocked):
            wait = self._state.dependencies.waits.get(child)
            if wait is not None:  # else the job ended during the search
                if id(wait) not in losses:
                    losses[id(wait)] = sorted(wait.must_succeed & self._lost)
                found[child] = losses[id(wait)]
        return found


def _ended_with(state: State, key: JobKey) -> list[JobKey]:
    """The job itself, and what fails with it: a task's array, an array's awaited tasks."""
    if task_of(key) is not None:
        return [key, job_key(number_of(key))]
    return [key, *sorted(state.dependencies.awaited.get(key, ()))]


def _is_blocked(wait: Wait, lost: set[JobKey]) -> bool:
    lost_all = wait.any_of is not None and wait.any_of <= lost
    return lost_all or not wait.unmet.isdisjoint(lost)
