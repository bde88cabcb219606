"""The tracker: all submissions and runs on a cluster, reports to the daemon, and the time of the next poll.

`submit`, `poll` and `cancel` share one Tracker. All of them run in the worker's thread.
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
from gflow.core.reasons import NO_REASON, ReasonKind
from gflow.targets.port import End, Ended, Launch, Run
from gflow.targets.slurm.commands.reasons import in_words
from gflow.targets.slurm.script import ScriptInputs, interpreter_of, script_of, shapes_of
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.shared_folder import Claim, SharedFolder
from gflow.targets.slurm.commands.slurm_cli import Slurm

log = logging.getLogger("gflow.slurm")
# Seconds between two looks at the shared folder while there is any submission.
LOOK_S = 1.0
# Seconds after a restart in which the controller may not know its nodes yet and refuses valid jobs.
SHAKY_S = 60.0


class Tracker:
    """The state of the worker."""

    def __init__(
        self,
        cluster: Cluster,
        shared_folder: SharedFolder,
        slurm: Slurm,
        on_status: Callable[[list[RemoteStatus]], None],
        on_end: Callable[[Ended], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster, self.shared_folder, self.slurm, self.clock = cluster, shared_folder, slurm, clock
        self._on_status, self._on_end = on_status, on_end
        self.daemon = shared_folder.daemon_id()
        self.submissions: dict[Run, SlurmSubmission] = {}
        self.tracked_runs: dict[str, TrackedRun] = {}
        self.pending_reports: list[RemoteStatus] = []
        # Slurm jobs to cancel, until scancel succeeds: job id and the tag that it must have. A controller
        # that was killed reuses job ids.
        self.to_cancel: dict[str, str] = {}
        # Ids of jobs that were submitted again: their ends are ignored.
        self.ignored_ids: set[str] = set()
        self.poll_at = self.pause_s = 0.0
        self.created_at = clock()
        # The time since which the controller does not answer; 0: it answers.
        self._down_since = 0.0
        self._shaky_until = 0.0
        # Read the shared folder in the next turn even if its mtime has not changed.
        self.must_read_folder = True

    # ------------------------------------------------------------ the controller

    @property
    def is_down(self) -> bool:
        return self._down_since > 0

    @property
    def is_shaky(self) -> bool:
        """Whether the controller is down, or was within SHAKY_S: its refusals are not final then."""
        return self.is_down or self.clock() < self._shaky_until

    def mark_down(self, why: str) -> None:
        """Record that the controller does not answer, back off, and report it for all unsent submissions."""
        now = self.clock()
        if not self._down_since:
            log.warning("the Slurm controller does not answer: %s", why.strip())
            self._down_since = now
        self.pause_s = min(max(2.0, self.pause_s * 2), self.cluster.poll_most_secs)
        self.poll_at = now + self.pause_s
        for submission in self.submissions.values():
            if any(candidate.stage is not Stage.SENT for candidate in submission.candidates):
                self.report_submission(submission, in_words("SlurmUnreachable"))

    def mark_up(self) -> None:
        if self._down_since:
            log.warning("the Slurm controller answers again")
            self._down_since, self.pause_s = 0.0, 0.0
            self.ignored_ids.clear()
            self._shaky_until = self.clock() + SHAKY_S

    def poll_now(self) -> None:
        """Poll in the next turn, and restart from the shortest interval."""
        self.poll_at, self.pause_s = 0.0, 0.0

    def poll_within(self, seconds: float) -> None:
        """Poll again after this many seconds at the latest."""
        self.poll_at = min(self.poll_at, self.clock() + seconds)

    # ------------------------------------------------------------ ends

    def withdraw(self, tracked: TrackedRun) -> bool:
        """Take the claim token of a run; whether the run can no longer begin."""
        if tracked.claim is not None or tracked.has_exit:
            return False
        return self.shared_folder.withdraw(tracked.name)

    def mark_for_cancel(self, submission: SlurmSubmission, task: str = "") -> None:
        """Mark the unclaimed Slurm jobs of a submission, or of one of its tasks, for cancellation."""
        number = task.partition(".")[0].partition("_")[2]
        suffix = f"_{number}" if number and submission.is_array else ""
        claimed = {tracked.claim.id for tracked in submission.tracked_runs.values() if tracked.claim}
        for candidate in submission.candidates:
            if candidate.id and candidate.id + suffix not in claimed:
                self.to_cancel[candidate.id + suffix] = submission.tag(self.daemon, candidate.number)

    def end(self, tracked: TrackedRun, end: End) -> None:
        """Report the end of a run: no process of it lives or can begin."""
        self.flush_reports()
        submission = tracked.submission
        if submission.run == tracked.run:
            self.drop(submission)
        self.tracked_runs.pop(tracked.name, None)
        submission.tracked_runs.pop(tracked.name, None)
        self._on_end(Ended(tracked.run, end))
        if submission.is_array:
            self.end_withdrawn_array(submission)
        self.poll_now()

    def end_withdrawn_array(self, submission: SlurmSubmission) -> None:
        """End a withdrawn array once none of its tasks runs."""
        started = [
            tracked
            for tracked in submission.tracked_runs.values()
            if tracked.claim is not None or tracked.stop_requested
        ]
        if (
            submission.refusal.kind is ReasonKind.WITHDRAWN
            and not started
            and submission.run in self.submissions
        ):
            self.end_submission(submission)

    def end_submission(self, submission: SlurmSubmission) -> None:
        """Report the end of an array of which no task can begin any more. `refusal` is the reason."""
        self._on_end(Ended(submission.run, End(problem=submission.refusal)))
        self.drop(submission)

    def drop(self, submission: SlurmSubmission) -> None:
        self.mark_for_cancel(submission)
        self.submissions.pop(submission.run, None)
        for name in submission.tracked_runs:
            self.tracked_runs.pop(name, None)

    # ------------------------------------------------------------ reports

    def report(
        self, tracked: TrackedRun, *, running: bool = False, reason: str = "", id: str = "", nodes: str = ""
    ) -> None:
        """Queue a status report about a run if the status has changed."""
        status = (running, reason, id, nodes)
        if tracked.reported == status:
            return
        tracked.reported = status
        if not running and tracked.submission.is_array:
            self.report_submission(tracked.submission, reason, id.partition("_")[0])
            return
        run = tracked.run
        self.pending_reports.append(
            RemoteStatus(key=run.key, attempt=run.attempt, running=running, reason=reason, id=id, nodes=nodes)
        )

    def report_submission(self, submission: SlurmSubmission, reason: str, id: str = "") -> None:
        run = submission.run
        if submission.reported != (reason, id):
            submission.reported = (reason, id)
            self.pending_reports.append(RemoteStatus(key=run.key, attempt=run.attempt, reason=reason, id=id))

    def flush_reports(self) -> None:
        if self.pending_reports:
            reports, self.pending_reports = self.pending_reports, []
            self._on_status(reports)


MARK = "gflow:"


class Stage(Enum):
    """The state of a candidate. UNSURE: sbatch was called, and its outcome is not known."""

    NEW = "new"
    UNSURE = "unsure"
    SENT = "sent"
    REFUSED = "refused"


class Candidate:
    """One sbatch call: the job, or one of the shapes of a race."""

    def __init__(self, number: int, nodes: int, gpus: int, stage: Stage) -> None:
        self.number, self.nodes, self.gpus = number, nodes, gpus
        self.stage = stage
        self.id = ""
        # When it was sent, and how many polls since then have not shown it.
        self.sent_at = 0.0
        self.missing = 0


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
        self.stop_requested = False


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
        # How often it was submitted again because a restarted controller ended it.
        self.resubmissions = 0
        # Why no further run of it can begin; NO_REASON: runs can begin.
        self.refusal = NO_REASON
        self.reported: tuple[str, str] = ("", "")
        # When the grace time after a stop request is over; 0: no stop was requested.
        self.kill_at = 0.0

    @property
    def is_array(self) -> bool:
        return self.launch.job.is_array

    def tag(self, daemon: str, candidate: int) -> str:
        return f"{MARK}{daemon}:{self.run.name}:{candidate}"


class RowTag(NamedTuple):
    """The tag of a queue row: names of the run and of its submission, and the candidate's number."""

    run: str
    submission: str
    candidate: int


def read_tag(comment: str, daemon: str, task: int | None) -> RowTag | None:
    """Parse the tag in a job's comment; None: not a job of this daemon."""
    words = comment.split(":")
    if len(words) != 4 or words[0] != MARK[:-1] or words[1] != daemon or not words[3].isdecimal():
        return None
    name = words[2]
    number, _, attempt = name.rpartition(".")
    run = name if task is None or "_" in number else f"{number}_{task}.{attempt}"
    return RowTag(run, name, int(words[3]))


def build_script(launch: Launch, candidate: Candidate, cluster: Cluster, folder: str, tag: str) -> str:
    """The sbatch script of one candidate."""
    variables = {
        name: value
        for name, value in variables_of(launch.extra).items()
        if name.startswith("GFLOW_") and name not in PER_TASK
    }
    variables["GFLOW_NODES"], variables["GFLOW_GPUS"] = str(candidate.nodes), str(candidate.gpus)
    inputs = ScriptInputs(
        cluster=cluster,
        folder=folder,
        tag=tag,
        log=launch.log,
        error_log=launch.error_log,
        variables=variables,
        interpreter=None if launch.script is None else interpreter_of(launch.script),
        candidate=candidate.number,
        nodes=candidate.nodes,
        gpus=candidate.gpus,
    )
    return script_of(launch.job, inputs)


# Variables that the script sets itself, as they differ between the tasks of an array.
PER_TASK = frozenset({"GFLOW_JOB_ID", "GFLOW_ARRAY_JOB_ID", "GFLOW_ARRAY_TASK_ID"})


def variables_of(block: bytes) -> dict[str, str]:
    """Parse a NUL-separated block of `NAME=value`; the last value of a name counts."""
    found = {}
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if name and equals:
            found[os.fsdecode(name)] = os.fsdecode(value)
    return found


def environment_of(launch: Launch) -> dict[str, str]:
    """The environment for sbatch, which the job inherits: the submitter's variables and gflow's."""
    return {"PYTHONUNBUFFERED": "1"} | variables_of(launch.environ + b"\0" + launch.extra)
