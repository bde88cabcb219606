"""What the keys do to a job: each is a request, and the command line that does the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gflow.client import hot_path, http
from gflow.errors import GflowError, clean
from gflow.tui.job_rows import ENDED, WAITING, Row, count_tasks
from gflow.tui.line import amount

PRIORITY_MOST = 255


class Action(NamedTuple):
    """A change of a job: the command that does the same, and the request. `question`: asked before it."""

    command: str
    path: str
    body: Mapping[str, Any]
    question: str = ""

    def perform(self) -> str:
        """Send the request; returns the command and the first line of the answer."""
        content = hot_path.dumps(self.body).encode()
        try:
            answer = http.ask("POST", self.path, content, "text/plain", {}).decode(errors="replace")
        except (GflowError, OSError) as error:
            hint = getattr(error, "hint", "")
            return f"{self.command}: {clean(str(error))}" + (f" ({clean(hint)})" if hint else "")
        first, _, rest = answer.strip().partition("\n")
        return f"{self.command}: {clean(first)}" + (" …" if rest else "")


def action_of(key: str, row: Row) -> Action | str:
    """The action of a key for a row; a sentence if it makes no sense there."""
    return _ACTIONS[key](row)


def _cancel(row: Row) -> Action | str:
    if row.section == ENDED:
        return f"{row.reference} has ended already"
    question = f"Cancel {_what(row)} ({row.jobs[0]['name']})?"
    jobs = [str(job["id"]) for job in row.jobs]
    command = f"gcancel {row.reference if len(jobs) > 3 else ' '.join(jobs)}"
    return Action(command, "/jobs/cancel", {"jobs": jobs}, question)


def _what(row: Row) -> str:
    """The jobs of a row in words. An array is cancelled with its running tasks."""
    if row.is_group:
        return f"{amount(count_tasks(row.jobs), 'job')} of {row.reference}"
    tasks = row.jobs[0]["tasks"]
    if tasks is None:
        return f"job {row.reference}"
    return f"array {row.reference} with {amount(tasks['waiting'] + tasks['active'], 'task')}"


def _hold(row: Row) -> Action | str:
    if row.section != WAITING:
        return f"{row.reference} does not wait, so it cannot be held"
    return _plain("hold", row)


def _release(row: Row) -> Action | str:
    if row.section != WAITING:
        return f"{row.reference} is not held"
    return _plain("release", row)


def _plain(verb: str, row: Row) -> Action:
    jobs = [str(job["id"]) for job in row.jobs]
    return Action(f"gjob {verb} {row.reference}", f"/jobs/{verb}", {"jobs": jobs})


def _redo(row: Row) -> Action | str:
    if row.section != ENDED:
        return f"{row.reference} has not ended: only an ended job can be done again"
    if row.is_group:
        return "choose one job of the group (Space lists them)"
    body = {"job": row.reference, "token": os.urandom(16).hex(), "options": {}, "cascade": False}
    question = f"Do job {row.reference} ({row.jobs[0]['name']}) again, as a new job?"
    return Action(f"gjob redo {row.reference}", "/jobs/redo", body, question)


def _reprioritise(more: int) -> Callable[[Row], Action | str]:
    def change(row: Row) -> Action | str:
        if row.section == ENDED:
            return f"{row.reference} has ended already"
        priority = min(PRIORITY_MOST, max(0, int(row.jobs[0]["priority"]) + more))
        body = {"jobs": [str(job["id"]) for job in row.jobs], "options": {"priority": priority}}
        return Action(f"gjob update {row.reference} --priority {priority}", "/jobs/update", body)

    return change


_ACTIONS: dict[str, Callable[[Row], Action | str]] = {
    "c": _cancel,
    "h": _hold,
    "r": _release,
    "d": _redo,
    "plus": _reprioritise(1),
    "minus": _reprioritise(-1),
}
KEYS = tuple(_ACTIONS)
