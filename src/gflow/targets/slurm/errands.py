"""What the clerk has to see to: submissions, and the runs that come of them."""

from __future__ import annotations

import os
from enum import Enum
from typing import NamedTuple

from gflow.core.ids import job_key
from gflow.targets.port import Launch, Run
from gflow.targets.slurm.desk import Claim
from gflow.targets.slurm.script import Sheet, interpreter_of, script_of, shapes_of
from gflow.targets.slurm.settings import Cluster

MARK = "gflow:"


class Stage(Enum):
    """How far a bid is. Unsure: sbatch was called, and nobody knows whether it worked."""

    NEW = "new"
    UNSURE = "unsure"
    SENT = "sent"
    REFUSED = "refused"


class Bid:
    """One submission to Slurm: the job, or one of the shapes that race for it."""

    def __init__(self, number: int, nodes: int, gpus: int, stage: Stage) -> None:
        self.number, self.nodes, self.gpus = number, nodes, gpus
        self.stage = stage
        self.id = ""
        # Since when Slurm has it, or should have, and does not show it.
        self.sent_at = 0.0
        self.missing = 0


class Unit:
    """What can begin and end: a job, or one task of an array."""

    def __init__(self, run: Run, errand: Errand) -> None:
        self.run, self.name, self.errand = run, run.name, errand
        self.claim: Claim | None = None
        self.has_exit = False
        # What the daemon was told last, so that it hears of changes alone.
        self.told: tuple[object, ...] = ()
        # Since when Slurm says that it is over, or says nothing at all; 0: neither.
        self.final_since = self.absent_since = 0.0
        self.stopped = False


class Errand:
    """What the daemon handed over: a job, or a whole array."""

    def __init__(self, launch: Launch, *, asked: bool) -> None:
        self.launch, self.run = launch, launch.run
        stage = Stage.UNSURE if asked else Stage.NEW
        self.bids = [Bid(i, *shape, stage) for i, shape in enumerate(shapes_of(launch.job.spec))]
        job = launch.job
        runs = [self.run]
        if job.progress is not None:
            runs = [Run(job_key(job.number, task), job.attempt) for task in job.progress.pending]
        self.units = {run.name: Unit(run, self) for run in runs}
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


def text_of(launch: Launch, bid: Bid, cluster: Cluster, folder: str, tag: str) -> str:
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
