"""The clerk's books: what is out there, what the daemon is told of it, and when Slurm is asked next.

Submitting, asking and cancelling share them. All are called from the clerk's thread.

What the clerk has to see to: submissions, and the runs that come of them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from gflow.core.events import RemoteStatus
from gflow.core.ids import job_key
from gflow.core.lifecycle.finish import RECALLED
from gflow.targets.port import End, Ended, Launch, Run
from gflow.targets.slurm.reasons import in_words
from gflow.targets.slurm.script import Sheet, interpreter_of, script_of, shapes_of
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.shared_folder import Claim, SharedFolder
from gflow.targets.slurm.slurm_cli import Slurm

log = logging.getLogger("gflow.slurm")
# How often the folder is looked at while anything is out there.
LOOK_S = 1.0
# A controller that has just come back does not know its nodes yet, and refuses what it will take in a moment.
SHAKY_S = 60.0


class Tracker:
    """Everything that the clerk remembers."""

    def __init__(
        self,
        cluster: Cluster,
        desk: SharedFolder,
        slurm: Slurm,
        seen: Callable[[list[RemoteStatus]], None],
        ended: Callable[[Ended], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster, self.desk, self.slurm, self.clock = cluster, desk, slurm, clock
        self._seen, self._ended = seen, ended
        self.daemon = desk.daemon_id()
        self.errands: dict[Run, SlurmSubmission] = {}
        self.units: dict[str, TrackedRun] = {}
        self.news: list[RemoteStatus] = []
        # Slurm jobs that are to be cancelled, until that has worked: each number, and the tag it must have.
        # A controller that was killed gives numbers out again.
        self.doomed: dict[str, str] = {}
        # Those whose end means nothing.
        self.void: set[str] = set()
        self.poll_at = self.pause = 0.0
        self.born = clock()
        # Since when the controller does not answer; 0: it does.
        self._down_since = 0.0
        self._shaky_until = 0.0
        # The folder is to be read, whether it looks changed or not.
        self.fresh = True

    # ------------------------------------------------------------ the controller

    @property
    def is_down(self) -> bool:
        return self._down_since > 0

    @property
    def is_shaky(self) -> bool:
        """Whether the controller is down, or was a moment ago: then its refusals mean little."""
        return self.is_down or self.clock() < self._shaky_until

    def went_down(self, why: str) -> None:
        """The controller does not answer: everything waits, and is told so."""
        now = self.clock()
        if not self._down_since:
            log.warning("the Slurm controller does not answer: %s", why.strip())
            self._down_since = now
        self.pause = min(max(2.0, self.pause * 2), self.cluster.poll_most_secs)
        self.poll_at = now + self.pause
        for errand in self.errands.values():
            if any(bid.stage is not Stage.SENT for bid in errand.bids):
                self.sight_errand(errand, in_words("SlurmUnreachable"))

    def came_back(self) -> None:
        if self._down_since:
            log.warning("the Slurm controller answers again")
            self._down_since, self.pause = 0.0, 0.0
            self.void.clear()
            self._shaky_until = self.clock() + SHAKY_S

    def soon(self) -> None:
        """Something happened: ask at once, and then often."""
        self.poll_at, self.pause = 0.0, 0.0

    def within(self, seconds: float) -> None:
        """Ask again after so long at the latest."""
        self.poll_at = min(self.poll_at, self.clock() + seconds)

    # ------------------------------------------------------------ what is over

    def withdraw(self, unit: TrackedRun) -> bool:
        """Whether it is certain that this never begins."""
        if unit.claim is not None or unit.has_exit:
            return False
        return self.desk.withdraw(unit.name)

    def doom(self, errand: SlurmSubmission, task: str = "") -> None:
        """What Slurm has of it is not wanted any more."""
        number = task.partition(".")[0].partition("_")[2]
        suffix = f"_{number}" if number and errand.is_array else ""
        claimed = {unit.claim.id for unit in errand.units.values() if unit.claim}
        for bid in errand.bids:
            if bid.id and bid.id + suffix not in claimed:
                self.doomed[bid.id + suffix] = errand.tag(self.daemon, bid.number)

    def end(self, unit: TrackedRun, end: End) -> None:
        """Nothing of this run lives any more, or can begin."""
        self.tell()
        errand = unit.errand
        if errand.run == unit.run:
            self.drop(errand)
        self.units.pop(unit.name, None)
        errand.units.pop(unit.name, None)
        self._ended(Ended(unit.run, end))
        if errand.is_array:
            self.settle_array(errand)
        self.soon()

    def settle_array(self, errand: SlurmSubmission) -> None:
        """An array that is taken back is over when its last begun task is."""
        begun = [unit for unit in errand.units.values() if unit.claim is not None or unit.stopped]
        if errand.refusal == RECALLED and not begun and errand.run in self.errands:
            self.end_errand(errand)

    def end_errand(self, errand: SlurmSubmission) -> None:
        """Nothing of this array can begin any more, for the reason that it carries."""
        self._ended(Ended(errand.run, End(None, None, errand.refusal)))
        self.drop(errand)

    def drop(self, errand: SlurmSubmission) -> None:
        self.doom(errand)
        self.errands.pop(errand.run, None)
        for name in errand.units:
            self.units.pop(name, None)

    # ------------------------------------------------------------ telling

    def sight(
        self, unit: TrackedRun, *, running: bool = False, reason: str = "", id: str = "", nodes: str = ""
    ) -> None:
        """What the daemon is to know of a run; it hears of changes alone."""
        said = (running, reason, id, nodes)
        if unit.told == said:
            return
        unit.told = said
        if not running and unit.errand.is_array:
            self.sight_errand(unit.errand, reason, id.partition("_")[0])
            return
        run = unit.run
        self.news.append(
            RemoteStatus(key=run.key, attempt=run.attempt, running=running, reason=reason, id=id, nodes=nodes)
        )

    def sight_errand(self, errand: SlurmSubmission, reason: str, id: str = "") -> None:
        run = errand.run
        if errand.told != (reason, id):
            errand.told = (reason, id)
            self.news.append(RemoteStatus(key=run.key, attempt=run.attempt, reason=reason, id=id))

    def tell(self) -> None:
        if self.news:
            news, self.news = self.news, []
            self._seen(news)


MARK = "gflow:"


class Stage(Enum):
    """How far a bid is. Unsure: sbatch was called, and nobody knows whether it worked."""

    NEW = "new"
    UNSURE = "unsure"
    SENT = "sent"
    REFUSED = "refused"


class Candidate:
    """One submission to Slurm: the job, or one of the shapes that race for it."""

    def __init__(self, number: int, nodes: int, gpus: int, stage: Stage) -> None:
        self.number, self.nodes, self.gpus = number, nodes, gpus
        self.stage = stage
        self.id = ""
        # Since when Slurm has it, or should have, and does not show it.
        self.sent_at = 0.0
        self.missing = 0


class TrackedRun:
    """What can begin and end: a job, or one task of an array."""

    def __init__(self, run: Run, errand: SlurmSubmission) -> None:
        self.run, self.name, self.errand = run, run.name, errand
        self.claim: Claim | None = None
        self.has_exit = False
        # What the daemon was told last, so that it hears of changes alone.
        self.told: tuple[object, ...] = ()
        # Since when Slurm says that it is over, or says nothing at all; 0: neither.
        self.final_since = self.absent_since = 0.0
        self.stopped = False


class SlurmSubmission:
    """What the daemon handed over: a job, or a whole array."""

    def __init__(self, launch: Launch, *, asked: bool) -> None:
        self.launch, self.run = launch, launch.run
        stage = Stage.UNSURE if asked else Stage.NEW
        self.bids = [Candidate(i, *shape, stage) for i, shape in enumerate(shapes_of(launch.job.spec))]
        job = launch.job
        runs = [self.run]
        if job.progress is not None:
            runs = [Run(job_key(job.number, task), job.attempt) for task in job.progress.pending]
        self.units = {run.name: TrackedRun(run, self) for run in runs}
        # How often it was submitted anew because a restarted controller ended it.
        self.again = 0
        # Why nothing more of it can begin; empty: it can.
        self.refusal = ""
        self.told: tuple[str, str] = ("", "")
        # When the second, harder request to stop is due; 0: nobody wants it to stop.
        self.kill_at = 0.0

    @property
    def is_array(self) -> bool:
        return self.launch.job.is_array

    def tag(self, daemon: str, bid: int) -> str:
        return f"{MARK}{daemon}:{self.run.name}:{bid}"


class Tagged(NamedTuple):
    """Which of ours a row of Slurm's queue is."""

    unit: str
    run: str
    bid: int


def read_tag(comment: str, daemon: str, task: int | None) -> Tagged | None:
    """What a job's comment says, if it is one of ours."""
    words = comment.split(":")
    if len(words) != 4 or words[0] != MARK[:-1] or words[1] != daemon or not words[3].isdecimal():
        return None
    run = words[2]
    number, _, attempt = run.rpartition(".")
    unit = run if task is None or "_" in number else f"{number}_{task}.{attempt}"
    return Tagged(unit, run, int(words[3]))


def text_of(launch: Launch, bid: Candidate, cluster: Cluster, folder: str, tag: str) -> str:
    """The script of one bid."""
    told = {
        name: value
        for name, value in variables_of(launch.extra).items()
        if name.startswith("GFLOW_") and name not in PER_TASK
    }
    told["GFLOW_NODES"], told["GFLOW_GPUS"] = str(bid.nodes), str(bid.gpus)
    sheet = Sheet(
        cluster=cluster,
        folder=folder,
        tag=tag,
        log=launch.log,
        error_log=launch.error_log,
        told=told,
        interpreter=None if launch.script is None else interpreter_of(launch.script),
        bid=bid.number,
        nodes=bid.nodes,
        gpus=bid.gpus,
    )
    return script_of(launch.job, sheet)


# The script sets these by itself, as they differ between the tasks of an array.
PER_TASK = frozenset({"GFLOW_JOB_ID", "GFLOW_ARRAY_JOB_ID", "GFLOW_ARRAY_TASK_ID"})


def variables_of(block: bytes) -> dict[str, str]:
    """A block of `NAME=value` as a dictionary; later ones win."""
    found = {}
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if name and equals:
            found[os.fsdecode(name)] = os.fsdecode(value)
    return found


def environment_of(launch: Launch) -> dict[str, str]:
    """What sbatch takes along for the job: the submitter's variables, and ours."""
    return {"PYTHONUNBUFFERED": "1"} | variables_of(launch.environ + b"\0" + launch.extra)
