"""Submissions to a cluster: a job or an array, the runs that it may begin, and the tags of its Slurm jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gflow.core.ids import job_key, task_of
from gflow.core.reasons import NO_REASON
from gflow.core.task_set import TaskSet
from gflow.targets.port import Launch, Run
from gflow.targets.slurm.array_parts import FIRST_REPEATED, Part, common, parts_of, without
from gflow.targets.slurm.candidate import Action, Candidate, RaceState, Retry, Stage
from gflow.targets.slurm.commands.identities import MARK
from gflow.targets.slurm.script import shapes_of
from gflow.targets.slurm.shared_folder import Claim


class TrackedRun:
    """A run that can begin and end: a job, or one task of an array."""

    def __init__(self, run: Run, submission: SlurmSubmission) -> None:
        self.run, self.name, self.submission = run, run.name, submission
        self.claim: Claim | None = None
        self.has_exit = False
        # The last status reported to the daemon: only changes are reported.
        self.reported: tuple[object, ...] = ()
        # The times since which Slurm reports a final state, or does not list it; 0: not the case.
        self.final_since = self.absent_since = 0.0
        # How many listings have shown other tasks of its array, and not this one.
        self.missing = 0
        # The action that is to be carried out on it, and whether its token was taken.
        self.action: Action | None = None
        self.is_withdrawn = False
        self.stop_requested = False
        # How often a task was submitted again because a restarted controller ended it.
        self.resubmissions = 0
        # When the grace time after a stop request is over.
        self.kill_at = 0.0

    @property
    def can_begin(self) -> bool:
        """Whether it may begin and has not."""
        return not (self.claim or self.is_withdrawn or self.action)


class SlurmSubmission:
    """A job or a whole array that the daemon handed over."""

    def __init__(self, launch: Launch, *, was_submitted: bool) -> None:
        self.launch, self.run = launch, launch.run
        stage = Stage.UNSURE if was_submitted else Stage.NEW
        self.candidates = [Candidate(i, *shape, stage) for i, shape in enumerate(shapes_of(launch.job.spec))]
        job = launch.job
        runs = [self.run]
        if job.progress is not None:
            runs = [Run(job_key(job.number, task), job.attempt) for task in job.progress.pending]
        self.tracked_runs = {run.name: TrackedRun(run, self) for run in runs}
        self.race = RaceState()
        # When its files are written again, after a failure.
        self.retry = Retry()
        # Whether its files are in the shared folder.
        self.is_prepared = False
        # How often it was submitted again because a restarted controller ended it; and the tasks of an array
        # that are to be.
        self.resubmissions = 0
        self.lost_tasks: set[int] = set()
        # Why no further run of it can begin; NO_REASON: runs can begin.
        self.refusal = NO_REASON
        self.reported: tuple[str, str] = ("", "")

    @property
    def is_array(self) -> bool:
        return self.launch.job.is_array

    def gpus_of(self, claim: Claim | None) -> int:
        """The GPUs of the shape that won a race, on all nodes; 0: it is none."""
        if claim is None or self.is_split or len(self.candidates) < 2:
            return 0
        return next((one.nodes * one.gpus for one in self.candidates if one.number == claim.candidate), 0)

    @property
    def is_split(self) -> bool:
        """Whether it is an array in parts, each of which is a candidate."""
        return self.candidates[0].tasks is not None

    @property
    def last_task(self) -> int:
        """The largest task index; 0 for a job without tasks."""
        job = self.launch.job
        return job.progress.pending.last if job.progress is not None else job.task or 0

    def divide(self, limit: int) -> None:
        """Divide an array that Slurm has not got into parts, if it exceeds this MaxArraySize."""
        job = self.launch.job
        for candidate in self.candidates:
            candidate.offset = (job.task or 0) // limit * limit
        if job.progress is not None and self.last_task >= limit and len(self.candidates) == 1:
            self.candidates = self.split(parts_of(job.progress.pending, limit), Stage.NEW)

    def split(self, parts: Sequence[Part], stage: Stage) -> list[Candidate]:
        """New candidates for parts of an array, of the same shape as the present ones."""
        first = self.candidates[0]
        return [
            Candidate(part.number, first.nodes, first.gpus, stage, part.tasks, part.offset) for part in parts
        ]

    def free_number(self, wanted: int) -> int:
        """A number for a new part: this one, unless another part has it."""
        numbers = {one.number for one in self.candidates}
        return wanted if wanted not in numbers else max(FIRST_REPEATED - 1, *numbers) + 1

    def repeat(self, tasks: TaskSet) -> list[Candidate]:
        """Move tasks of an array to new parts, which Slurm has not got; these."""
        progress = self.launch.job.progress
        assert progress is not None
        made: list[Candidate] = []
        for candidate in list(self.candidates):
            whole = progress.pending if candidate.tasks is None else candidate.tasks
            moved = common(tasks, whole)
            if moved:
                candidate.tasks = without(whole, moved)
                part = Part(self.free_number(candidate.number), moved, candidate.offset)
                new = self.split([part], Stage.NEW)
                self.candidates += new
                made += new
        return made

    def candidates_of(self, task: int | None) -> list[Candidate]:
        """The candidates of which one may run this task of an array."""
        if not self.is_split or task is None:
            return self.candidates
        return [one for one in self.candidates if one.tasks is not None and task in one.tasks]

    def runs_of(self, candidate: Candidate) -> list[TrackedRun]:
        """The runs that a candidate may run."""
        runs = list(self.tracked_runs.values())
        if candidate.tasks is None:
            return runs
        return [one for one in runs if (task_of(one.run.key) or 0) in candidate.tasks]

    def is_newer_than(self, listed: int, tracked: TrackedRun) -> bool:
        """Whether sbatch was called for a run of it after the tick at which a listing began."""
        candidates = self.candidates_of(task_of(tracked.run.key))
        return any(one.is_being_sent or one.returned > listed for one in candidates)

    @property
    def can_begin(self) -> bool:
        """Whether any run of it may begin and has not."""
        return any(one.can_begin for one in self.tracked_runs.values())

    def tag(self, daemon: str, candidate: int) -> str:
        """The tag of a candidate. Slurm's index of a task is less by the offset behind it."""
        offset = next((one.offset for one in self.candidates if one.number == candidate), 0)
        return f"{MARK}{daemon}:{self.run.name}:{candidate}" + (f"+{offset}" if offset else "")

    def job_id(self, candidate: Candidate, tracked: TrackedRun) -> str:
        """The id of the Slurm job, or of the task of an array, that may run this run."""
        task = task_of(tracked.run.key) if self.is_array else None
        return candidate.id if task is None else f"{candidate.id}_{task - candidate.offset}"


class RowTag(NamedTuple):
    """The tag of a queue row: names of the run and of its submission, and the candidate's number."""

    run: str
    submission: str
    candidate: int


def read_tag(comment: str, daemon: str, task: int | None) -> RowTag | None:
    """Parse the tag in a job's comment; None: not a job of this daemon."""
    words = comment.split(":")
    if len(words) != 4 or words[0] != MARK[:-1] or words[1] != daemon:
        return None
    candidate, _, offset = words[3].partition("+")
    if not f"{candidate}{offset}".isdecimal():
        return None
    name = words[2]
    number, _, attempt = name.rpartition(".")
    run = name if task is None or "_" in number else f"{number}_{task + int(offset or 0)}.{attempt}"
    return RowTag(run, name, int(candidate))
