"""Preparing: write the files of a submission to the shared folder before anything is asked of Slurm.

A submission is prepared when its claim tokens and its script are there, or when an earlier daemon has
submitted it. Until then it is tried again in every turn.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from gflow.core.reasons import LOST
from gflow.core.task_set import parse_tasks
from gflow.targets.port import End
from gflow.targets.slurm.array_parts import USUAL_LIMIT, Part, common, other_parts
from gflow.targets.slurm.candidate import Stage
from gflow.targets.slurm.shared_folder import RunFile, RunFiles
from gflow.targets.slurm.ssh.remote_folder import Unreachable
from gflow.targets.slurm.submission import SlurmSubmission
from gflow.targets.slurm.tracker import Tracker


class Preparation(NamedTuple):
    """What a submission lacks in the shared folder: claim tokens and files."""

    submission: SlurmSubmission
    was_submitted: bool
    # The runs without any file.
    missing: list[str]

    @property
    def tokens(self) -> list[str]:
        return [] if self.was_submitted else self.missing

    @property
    def files(self) -> list[RunFile]:
        script = self.submission.launch.script
        if self.was_submitted or script is None:
            return []
        return [RunFile(self.submission.run.name, "script", script)]


def prepare_all(tracker: Tracker, files: dict[str, RunFiles]) -> None:
    """Prepare the new submissions. `files`: the listing of the shared folder."""
    plans = []
    for submission in due_submissions(tracker):
        if not tracker.knows_array_limit(submission):
            continue
        try:
            plans.append(_plan(submission, files))
        except OSError as error:
            _report_trouble(tracker, submission, error)
    # One call for all where each costs a round trip.
    for group in [plans] if plans and tracker.shared_folder.is_remote else [[plan] for plan in plans]:
        _prepare(tracker, group, files)


def due_submissions(tracker: Tracker) -> list[SlurmSubmission]:
    """The submissions whose files are to be written now. Where that costs a round trip, after a pause."""
    now = tracker.clock()
    return [one for one in tracker.unprepared.values() if one.retry.at <= now]


def _report_trouble(tracker: Tracker, submission: SlurmSubmission, error: OSError) -> None:
    if tracker.shared_folder.is_remote and not isinstance(error, Unreachable):
        submission.retry.back_off(tracker.clock(), tracker.cluster.poll_most_secs)
    tracker.report_trouble(submission, error)


def _prepare(tracker: Tracker, plans: list[Preparation], files: dict[str, RunFiles]) -> None:
    tokens = [name for plan in plans for name in plan.tokens]
    written = [file for plan in plans for file in plan.files]
    try:
        if tokens or written:
            tracker.shared_folder.write(tokens, written)
    except OSError as error:
        if len(plans) > 1 and not isinstance(error, Unreachable):  # one of them may be too large
            for plan in plans:
                _prepare(tracker, [plan], files)
            return
        for plan in plans:
            _report_trouble(tracker, plan.submission, error)
        return
    for plan in plans:
        try:
            _finish(tracker, plan, files)
        except OSError as error:
            _report_trouble(tracker, plan.submission, error)


def _plan(submission: SlurmSubmission, files: dict[str, RunFiles]) -> Preparation:
    launch = submission.launch
    was_submitted = any(name in files and files[name].was_submitted for name in _names(submission))
    missing = [name for name in submission.tracked_runs if name not in files or files[name].is_empty]
    if not was_submitted and missing and launch.job.remote is not None and launch.job.remote.id:
        # Slurm has it, so its files were here: this is another folder, or an empty mount point.
        raise OSError(errno.ENOENT, f"the files of job {launch.job.label} are not there")
    return Preparation(submission, was_submitted, missing)


def _finish(tracker: Tracker, plan: Preparation, files: dict[str, RunFiles]) -> None:
    """Note that the files of a submission are there, and how far an earlier daemon came with it."""
    submission, was_submitted = plan.submission, plan.was_submitted
    ids = _ids_of(tracker, submission) if was_submitted else {}
    del tracker.unprepared[submission.run]
    submission.is_prepared, submission.race.is_adopted = True, was_submitted
    _split(tracker, submission, was_submitted=was_submitted)
    is_over = all(
        name in files and (files[name].claim or files[name].withdrawn) for name in submission.tracked_runs
    )
    for candidate in submission.candidates:
        candidate.id = ids.get(candidate.number, "")
        is_new = not was_submitted or (submission.is_split and candidate.stage is Stage.NEW)
        stage = Stage.NEW if is_new else Stage.UNSURE
        tracker.set_stage(submission, candidate, Stage.SENT if is_over or candidate.id else stage)
    if was_submitted:
        _give_up(tracker, submission, plan.missing)


def _split(tracker: Tracker, submission: SlurmSubmission, *, was_submitted: bool) -> None:
    """Divide an array into parts where Slurm would not take it as a whole, or an earlier daemon did so."""
    job, limit = submission.launch.job, tracker.array_limit or USUAL_LIMIT
    if not was_submitted or job.progress is None:
        submission.divide(limit)
        return
    asked, tasks = tracker.shared_folder.read_parts(submission.run.name), job.progress.pending
    if asked:
        sent = [Part(one.candidate, common(parse_tasks(one.tasks), tasks), one.offset) for one in asked]
        parts = submission.split([one for one in sent if one.tasks], Stage.UNSURE)
        submission.candidates = parts + submission.split(other_parts(tasks, sent, limit), Stage.NEW)


def _names(submission: SlurmSubmission) -> set[str]:
    """The submissions that may have asked Slurm for it: itself, or the array that it was a task of."""
    job = submission.launch.job
    return {submission.run.name, f"{job.number}.{job.attempt}"}


def _ids_of(tracker: Tracker, submission: SlurmSubmission) -> dict[int, str]:
    """The Slurm job ids of the candidates, as far as an earlier daemon learned them."""
    try:
        ids = tracker.shared_folder.read_asked(submission.run.name)
    except FileNotFoundError:  # a task: its array was submitted
        return {}
    remote = submission.launch.job.remote
    is_whole = len(submission.candidates) == 1 and not submission.is_split
    if not ids and remote is not None and remote.id and is_whole:
        return {0: remote.id.partition("_")[0]}
    return ids


def _give_up(tracker: Tracker, submission: SlurmSubmission, missing: list[str]) -> None:
    """End the runs whose token is gone although Slurm was asked: they may have run, and cannot begin."""
    for name in missing:
        tracked = submission.tracked_runs.get(name)
        if tracked is not None and tracker.withdraw(tracked):
            tracker.end(tracked, End(problem=LOST))
