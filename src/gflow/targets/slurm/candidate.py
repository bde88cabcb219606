"""A candidate of a submission, its stage, and the small records that the parts of the worker share."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gflow.core.task_set import TaskSet
from gflow.targets.slurm.commands.command_runner import CommandResult

# The result of a call that could not be made.
NO_ANSWER = CommandResult(False, "", "the call could not be made", True)

# The first pause before something is tried again.
RETRY_S = 3.0


class Scancel(NamedTuple):
    """A call of scancel: the job id, the tag that the job must have, and the signal; empty: cancel it."""

    id: str
    tag: str
    signal: str = ""
    to_batch_only: bool = False
    # Leave the tasks of an array that run.
    only_pending: bool = False


class Stage(Enum):
    """The state of a candidate. UNSURE: sbatch was called, and its outcome is not known."""

    NEW = "new"
    UNSURE = "unsure"
    SENT = "sent"
    REFUSED = "refused"
    # It is gone from the queue, and the accounting says how it ended.
    ENDED = "ended"


class Action(Enum):
    """An action on a run. WITHDRAW leaves a run that has begun; STOP and KILL end it."""

    WITHDRAW = "withdraw"
    STOP = "stop"
    KILL = "kill"


class Retry:
    """When something is tried again: after longer and longer pauses."""

    def __init__(self) -> None:
        self.at = self._pause_s = 0.0

    def back_off(self, now: float, most_s: float, least_s: float = RETRY_S) -> None:
        self._pause_s = min(most_s, max(least_s, self._pause_s * 2))
        self.at = now + self._pause_s


class Candidate:
    """One sbatch call: the job, one of the shapes of a race, or a part of an array (`array_parts`)."""

    def __init__(
        self,
        number: int,
        nodes: int,
        gpus: int,
        stage: Stage,
        tasks: TaskSet | None = None,
        offset: int = 0,
    ) -> None:
        self.number, self.nodes, self.gpus = number, nodes, gpus
        self.stage = stage
        # The tasks of a part; None: all tasks of the job. Slurm's index of a task is less by `offset`.
        self.tasks, self.offset = tasks, offset
        self.id = ""
        # When it was sent, the tick at which sbatch returned, and how many listings since then have not
        # shown it.
        self.sent_at = 0.0
        self.returned = 0
        self.missing = 0
        # How often it was submitted again because the queue did not show it.
        self.copies = 0
        self.is_being_sent = False
        # The state in which it ended, if the queue shows it no more.
        self.end_state = ""
        self.retry = Retry()


class RaceState:
    """The order of the shapes of a race, as far as Slurm reported it (`race_order`)."""

    def __init__(self) -> None:
        self.retry = Retry()
        self.is_probing = False
        # Whether an earlier daemon may have changed the order.
        self.is_adopted = False
        # The nice value of each candidate, and those that would start later than another one.
        self.nice: dict[int, int] = {}
        self.later: set[int] = set()
        # The candidate that should be first; and the one that is, until this time.
        self.choice: int | None = None
        self.favourite: int | None = None
        self.until = 0.0
        # The reason of the job meanwhile.
        self.note = ""
