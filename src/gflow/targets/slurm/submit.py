"""Submitting: call sbatch once for each candidate, and again only when Slurm is known not to have the job."""

from __future__ import annotations

import logging
import os

from gflow.core.reasons import Reason, ReasonKind
from gflow.targets.port import End, Launch
from gflow.targets.slurm.commands import slurm_cli
from gflow.targets.slurm.tracker import (
    LOOK_S,
    Candidate,
    SlurmSubmission,
    Stage,
    Tracker,
    build_script,
    environment_of,
)

log = logging.getLogger("gflow.slurm")
RETRY_S = 3.0


def submit_all(tracker: Tracker) -> None:
    """Submit every candidate that Slurm does not have yet."""
    for submission in list(tracker.submissions.values()):
        for candidate in submission.candidates:
            is_due = not candidate.sent_at or tracker.clock() - candidate.sent_at > RETRY_S
            if candidate.stage is Stage.NEW and is_due and not tracker.is_down:
                _submit(tracker, submission, candidate)
        if submission.refusal and all(
            candidate.stage is Stage.REFUSED for candidate in submission.candidates
        ):
            _fail(tracker, submission)


def _submit(tracker: Tracker, submission: SlurmSubmission, candidate: Candidate) -> None:
    launch, spec = submission.launch, submission.launch.job.spec
    tag = submission.tag(tracker.daemon, candidate.number)
    script = build_script(launch, candidate, tracker.cluster, str(tracker.shared_folder.folder), tag)
    if problem := _make_log_folders(launch):
        candidate.stage, submission.refusal = Stage.REFUSED, Reason(ReasonKind.START_FAILED, problem)
        return
    tracker.shared_folder.put(submission.run.name, "asked")
    candidate.stage = Stage.UNSURE
    result = tracker.slurm.submit(script, environment_of(launch), spec.cwd, spec.umask)
    if result.ok:
        candidate.stage, candidate.id, candidate.sent_at = Stage.SENT, result.text, tracker.clock()
        tracker.report_submission(submission, "Submitted", candidate.id)
        tracker.poll_within(LOOK_S)
        tracker.pause_s = 0.0
    elif result.unsure:
        tracker.mark_down(result.error)
    elif tracker.is_shaky:
        candidate.stage, candidate.sent_at = Stage.NEW, tracker.clock()
    else:
        candidate.stage = Stage.REFUSED
        why = f"Slurm: {slurm_cli.complaint(result.error)}"
        submission.refusal = Reason(ReasonKind.START_FAILED, why)
        log.warning("%s: %s", submission.run.name, submission.refusal)


def _fail(tracker: Tracker, submission: SlurmSubmission) -> None:
    """End a submission that Slurm refused: none of its runs ever begins."""
    for tracked in list(submission.tracked_runs.values()):
        if not tracker.withdraw(tracked):
            return
    if submission.is_array:
        tracker.end_submission(submission)
    else:
        tracker.end(submission.tracked_runs[submission.run.name], End(problem=submission.refusal))


def _make_log_folders(launch: Launch) -> str:
    """Create the folders of the job's logs; the error as text, as Slurm would not report it."""
    for path in {launch.log, launch.error_log}:
        folder = os.path.dirname(path)
        try:
            if "%" not in folder.replace("%%", ""):
                os.makedirs(folder.replace("%%", "%"), exist_ok=True)
        except OSError as error:
            return f"no log at {path}: {error.strerror}"
    return ""
