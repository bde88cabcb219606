"""What a cancel would take along, told beforehand."""

from __future__ import annotations

from collections.abc import Iterable

from gflow.core.deps import Wait
from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.state import State


def blocked_by(state: State, keys: Iterable[JobKey]) -> dict[JobKey, list[JobKey]]:
    """Jobs that could never start if these were cancelled, each with the parents that it loses.

    With several parents too: any one of those it needs, or all of those of which it needs one.
    """
    doomed = set(keys)
    lost = set(doomed)
    blocked: set[JobKey] = set()
    seen: set[int] = set()
    line = list(doomed)
    while line:
        for parent in _ended_with(state, line.pop()):
            lost.add(parent)
            for wait in state.children.get(parent, {}).values():
                if id(wait) in seen or not _is_blocked(wait, lost):
                    continue
                seen.add(id(wait))
                for child in wait.jobs - doomed:
                    blocked.add(child)
                    if not state.jobs[child].spec.no_auto_cancel:  # that one would wait on, in vain
                        line.append(child)
    losses: dict[int, list[JobKey]] = {}  # jobs that wait for the same share the list
    for child in sorted(blocked):
        wait = state.waits[child]
        if id(wait) not in losses:
            losses[id(wait)] = sorted(wait.parents & lost)
    return {child: losses[id(state.waits[child])] for child in sorted(blocked)}


def _ended_with(state: State, key: JobKey) -> list[JobKey]:
    """What does not succeed if this does not: a task's array, an array's tasks."""
    if task_of(key) is not None:
        return [key, job_key(number_of(key))]
    return [key, *sorted(state.awaited.get(key, ()))]


def _is_blocked(wait: Wait, lost: set[JobKey]) -> bool:
    nobody = wait.any_of is not None and wait.any_of <= lost
    return nobody or not wait.unmet.isdisjoint(lost)
