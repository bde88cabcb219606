"""What a cancel would take along, told beforehand."""

from __future__ import annotations

from collections.abc import Iterable

from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.state.dependencies import Wait
from gflow.core.state.state import State


def blocked_by(state: State, keys: Iterable[JobKey]) -> dict[JobKey, list[JobKey]]:
    """Jobs that could never start if these were cancelled, each with the parents that it loses."""
    blocked = Blocked(state, keys)
    blocked.look(None)
    return blocked.found()


class Blocked:
    """Jobs that could never start if others were cancelled, looked for a few at a time.

    With several parents too: any one of those it needs, or all of those of which it needs one.
    """

    def __init__(self, state: State, keys: Iterable[JobKey]) -> None:
        self._state = state
        self._doomed = set(keys)
        self._lost = set(self._doomed)
        self._blocked: set[JobKey] = set()
        self._seen: set[int] = set()
        self._line = list(self._doomed)

    def look(self, most: int | None) -> bool:
        """Follow so many jobs (None: all); whether there are more."""
        line = self._line
        while line and (most is None or most > 0):
            most = None if most is None else most - 1
            for parent in _ended_with(self._state, line.pop()):
                self._lost.add(parent)
                for wait in self._state.children.get(parent, {}).values():
                    self._block(wait)
        return bool(line)

    def _block(self, wait: Wait) -> None:
        if id(wait) in self._seen or not _is_blocked(wait, self._lost):
            return
        self._seen.add(id(wait))
        for child in wait.jobs - self._doomed:
            self._blocked.add(child)
            if not self._state.jobs[child].spec.no_auto_cancel:  # that one would wait on, in vain
                self._line.append(child)

    def found(self) -> dict[JobKey, list[JobKey]]:
        """Each with the parents that it loses; those that wait for the same share the list."""
        losses: dict[int, list[JobKey]] = {}
        found: dict[JobKey, list[JobKey]] = {}
        for child in sorted(self._blocked):
            wait = self._state.waits.get(child)
            if wait is not None:  # else it has ended while others were looked for
                if id(wait) not in losses:
                    losses[id(wait)] = sorted(wait.parents & self._lost)
                found[child] = losses[id(wait)]
        return found


def _ended_with(state: State, key: JobKey) -> list[JobKey]:
    """What does not succeed if this does not: a task's array, an array's tasks."""
    if task_of(key) is not None:
        return [key, job_key(number_of(key))]
    return [key, *sorted(state.awaited.get(key, ()))]


def _is_blocked(wait: Wait, lost: set[JobKey]) -> bool:
    nobody = wait.any_of is not None and wait.any_of <= lost
    return nobody or not wait.unmet.isdisjoint(lost)
