"""Submitting: call sbatch once for each candidate, and again only when Slurm is known not to have the job."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from gflow.core.reasons import Reason, ReasonKind
from gflow.targets.outcome import SHORTAGES
from gflow.targets.port import Launch
from gflow.targets.slurm import cancel
from gflow.targets.slurm.array_parts import LEAST_TASKS, Part, halve
from gflow.targets.slurm.candidate import NO_ANSWER, Action, Candidate, Retry, Stage
from gflow.targets.slurm.commands import slurm_cli
from gflow.targets.slurm.commands.command_runner import CommandResult
from gflow.targets.slurm.commands.reasons import in_words
from gflow.targets.slurm.commands.refusals import SUBMIT_LIMIT, Refusal, classify, limit_of
from gflow.targets.slurm.remote_launch import build_script, environment_of, launch_there
from gflow.targets.slurm.ssh.remote_shell import quote
from gflow.targets.slurm.submission import SlurmSubmission
from gflow.targets.slurm.tracker import LOOK_S, Tracker

log = logging.getLogger("gflow.slurm")
# Calls of sbatch at the same time. Over SSH several of them share a session.
MAX_CALLS, MAX_REMOTE_CALLS = 4, 48


def submit_due(tracker: Tracker) -> None:
    """Submit candidates that Slurm does not have yet, as many at once as may be."""
    most = MAX_REMOTE_CALLS if tracker.shared_folder.is_remote else MAX_CALLS
    for submission in list(tracker.unsent.values()):
        for candidate in submission.candidates:
            if tracker.sbatch_calls >= most or tracker.is_down:
                return
            if _is_due(tracker, submission, candidate):
                _submit(tracker, submission, candidate)
            if candidate.is_being_sent:
                break  # the shapes of a race reach Slurm in their order: the first one is preferred


def _is_due(tracker: Tracker, submission: SlurmSubmission, candidate: Candidate) -> bool:
    if candidate.stage is not Stage.NEW or candidate.is_being_sent:
        return False
    if not any(one.can_begin for one in submission.runs_of(candidate)) or _waits_for_cap(submission):
        return False
    if not tracker.snapshots.is_settled(submission.launch.job.spec.snapshot, report=_reporter(tracker)):
        return False
    held = tracker.held_back.get(_kind(tracker, submission))
    return tracker.clock() >= max(candidate.retry.at, held.at if held is not None else 0.0)


def _waits_for_cap(submission: SlurmSubmission) -> bool:
    """Whether another part has to end first: each part alone keeps to the cap of the array (%N)."""
    return bool(submission.launch.job.spec.max_concurrent and _is_in_slurm(submission))


def _is_in_slurm(submission: SlurmSubmission) -> bool:
    """Whether Slurm has, or may have, a part of this array that has not ended."""
    if not submission.is_split:
        return False
    sent = [one for one in submission.candidates if one.stage in (Stage.SENT, Stage.UNSURE)]
    return any(submission.runs_of(one) for one in sent)


def _reporter(tracker: Tracker) -> Callable[[str, str], None]:
    """Reports why the files of a snapshot are not there, for all submissions that wait for them."""

    def report(snapshot: str, reason: str) -> None:
        for submission in tracker.unsent.values():
            if submission.launch.job.spec.snapshot == snapshot:
                tracker.report_submission(submission, reason)

    return report


def _kind(tracker: Tracker, submission: SlurmSubmission) -> tuple[str, ...]:
    """What limits of Slurm depend on: account, QOS and partition."""
    spec, cluster = submission.launch.job.spec, tracker.cluster
    return spec.project or cluster.account, spec.qos or cluster.qos, spec.partition or cluster.partition


def _submit(tracker: Tracker, submission: SlurmSubmission, candidate: Candidate) -> None:
    launch = launch_there(submission.launch, tracker.shared_folder)
    spec = launch.job.spec
    tag = submission.tag(tracker.daemon, candidate.number)
    try:
        script = build_script(launch, candidate, tracker.cluster, str(tracker.shared_folder.folder), tag)
    except ValueError as error:
        _refuse(tracker, submission, candidate, str(error))
        return
    try:
        problem, before = _make_log_folders(tracker, launch)
        problem = tracker.snapshots.lost.get(spec.snapshot, problem)
        if not problem:
            content = _answers(submission, candidate)
            before += tracker.shared_folder.note_asked(submission.run.name, content)
    except OSError as error:
        candidate.retry.back_off(tracker.clock(), tracker.cluster.poll_most_secs)
        tracker.report_trouble(submission, error)
        return
    if problem:
        _refuse(tracker, submission, candidate, problem)
        return
    tracker.set_stage(submission, candidate, Stage.UNSURE)
    tracker.sbatch_calls += 1
    candidate.is_being_sent = True
    environ = environment_of(launch)

    def call() -> CommandResult:
        if before:
            return tracker.slurm.submit_after(before, script, environ, spec.cwd, spec.umask)
        return tracker.slurm.submit(script, environ, spec.cwd, spec.umask)

    tracker.calls.start(
        call,
        lambda result: _handle_answer(tracker, submission, candidate, result),
        NO_ANSWER,
    )


def _answers(submission: SlurmSubmission, asked: Candidate) -> bytes:
    """The file `.asked`: the ids that sbatch has answered so far; and the parts that it was called for."""
    if not submission.is_split:
        return "".join(f"{one.number} {one.id}\n" for one in submission.candidates if one.id).encode()
    parts = [one for one in submission.candidates if one is asked or one.stage is not Stage.NEW]
    return "".join(
        f"{one.number} {one.id or '-'} {one.offset} {one.tasks}\n" for one in parts if one.tasks
    ).encode()


def _handle_answer(
    tracker: Tracker, submission: SlurmSubmission, candidate: Candidate, result: CommandResult
) -> None:
    """Handle the answer of sbatch. The submission may have ended while it was called."""
    tracker.sbatch_calls -= 1
    candidate.is_being_sent, candidate.returned = False, tracker.tick()
    candidate.sent_at = tracker.clock()
    if result.ok:
        candidate.id = result.text
    if not tracker.is_tracked(submission):
        tracker.mark_for_cancel(submission)
    elif result.ok:
        tracker.set_stage(submission, candidate, Stage.SENT)
        tracker.shared_folder.note_answers(submission.run.name, _answers(submission, candidate))
        tracker.report_submission(submission, "Submitted", candidate.id)
        tracker.held_back.pop(_kind(tracker, submission), None)
        tracker.poll_within(LOOK_S)
        tracker.pause_s = 0.0
    elif result.unsure:
        tracker.mark_down(result.error)
    elif not tracker.is_shaky and classify(result.error) is Refusal.PERMANENT:
        _refuse(tracker, submission, candidate, f"Slurm: {slurm_cli.complaint(result.error)}")
    elif not (SUBMIT_LIMIT.search(result.error) and _halve(tracker, submission, candidate)):
        _keep(tracker, submission, candidate, result.error)


def _halve(tracker: Tracker, submission: SlurmSubmission, candidate: Candidate) -> bool:
    """Halve an array, or a part of one, that is more than Slurm takes now; False: it stays as it is."""
    progress = submission.launch.job.progress
    if progress is None or (len(submission.candidates) > 1 and not submission.is_split):
        return False
    tracker.set_stage(submission, candidate, Stage.NEW)
    tasks = progress.pending if candidate.tasks is None else candidate.tasks
    if len(tasks) < (2 * LEAST_TASKS if _is_in_slurm(submission) else 2):
        return False
    first, second = halve(tasks)
    number = submission.free_number(second.first)
    parts = [Part(candidate.number, first, candidate.offset), Part(number, second, candidate.offset)]
    halves = submission.split(parts, Stage.NEW)
    submission.candidates = [
        new for one in submission.candidates for new in (halves if one is candidate else [one])
    ]
    return True


def _keep(tracker: Tracker, submission: SlurmSubmission, candidate: Candidate, error: str) -> None:
    """Keep a candidate that Slurm did not take now, with the reason; so far also others of its kind."""
    most_s = tracker.cluster.poll_most_secs
    candidate.retry.back_off(tracker.clock(), most_s)
    tracker.set_stage(submission, candidate, Stage.NEW)
    limit = limit_of(error)
    reason = in_words(limit) if limit else f"SlurmRefuses: {slurm_cli.complaint(error)}; gflow goes on trying"
    tracker.report_submission(submission, reason)
    if classify(error) is Refusal.PASSING and not tracker.is_shaky:
        kind = _kind(tracker, submission)
        tracker.held_back.setdefault(kind, Retry()).back_off(tracker.clock(), most_s)
        for other in tracker.unsent.values():
            if _kind(tracker, other) == kind and all(one.stage is Stage.NEW for one in other.candidates):
                tracker.report_submission(other, reason)


def _refuse(tracker: Tracker, submission: SlurmSubmission, candidate: Candidate, why: str) -> None:
    """Give a candidate up. A submission of which no candidate is left ends."""
    submission.refusal = Reason(ReasonKind.START_FAILED, why)
    log.warning("%s: %s", submission.run.name, submission.refusal)
    tracker.set_stage(submission, candidate, Stage.REFUSED)
    if submission.is_split or all(one.stage is Stage.REFUSED for one in submission.candidates):
        _fail(tracker, submission)


def _fail(tracker: Tracker, submission: SlurmSubmission) -> None:
    """End a submission that Slurm refused: none of its runs ever begins."""
    runs = list(submission.tracked_runs.values())
    for tracked in runs:
        tracker.request(tracked, tracked.action or Action.WITHDRAW)
    cancel.carry_out(tracker, runs)


def _make_log_folders(tracker: Tracker, launch: Launch) -> tuple[str, str]:
    """Create the folders of the job's logs; the error as text, as Slurm would not report it.

    On another machine: shell lines that do so before sbatch is called. OSError: there is no room now.
    """
    lines = []
    for path in {launch.log, launch.error_log}:
        folder = os.path.dirname(path)
        if "%" in folder.replace("%%", ""):
            continue
        folder = folder.replace("%%", "%")
        if tracker.shared_folder.is_remote:
            lines.append(f"mkdir -p -- {quote(folder)} || exit 1\n")
            if folder.startswith(f"{tracker.shared_folder.folder}/") and "%" not in path.replace("%%", ""):
                # Slurm ends a job whose log it cannot create; without room the job has to wait.
                lines.append(f"true >> {quote(path.replace('%%', '%'))} || exit 1\n")
            continue
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            if error.errno in SHORTAGES:
                raise
            return f"no log at {path}: {error.strerror}", ""
    return "", "".join(lines)
