"""Cancelling: withdraw runs that have not begun by their claim token; stop the others, TERM first."""

from __future__ import annotations

from gflow.core.reasons import WITHDRAWN
from gflow.targets.port import End, Run
from gflow.targets.slurm.tracker import LOOK_S, SlurmSubmission, Tracker

# Seconds between two scancel calls for a job that does not end.
RETRY_S = 30.0


def stop(tracker: Tracker, run: Run, *, now: bool) -> None:
    """Withdraw the run if it has not begun; else send TERM and, after the grace time, cancel it."""
    submission = tracker.submissions.get(run) or _find_submission(tracker, run)
    if submission is None:
        return
    tracked_runs = (
        list(submission.tracked_runs.values()) if submission.run == run else [tracker.tracked_runs[run.name]]
    )
    started = [tracked for tracked in tracked_runs if not tracker.withdraw(tracked)]
    for tracked in started:
        tracker.shared_folder.put(tracked.name, "stop")
        tracked.stop_requested = True
    if submission.run == run and submission.is_array:
        submission.refusal = submission.refusal or WITHDRAWN
        tracker.mark_for_cancel(submission)
        tracker.end_withdrawn_array(submission)
    elif not started:
        tracker.mark_for_cancel(submission, run.name)
        tracker.end(tracked_runs[0], End(problem=WITHDRAWN))
    if started:
        grace_s = 0.0 if now else float(submission.launch.job.spec.grace_s)
        submission.kill_at = tracker.clock() + grace_s
        ids = [tracked.claim.id for tracked in started if tracked.claim] or [
            candidate.id for candidate in submission.candidates if candidate.id
        ]
        if not now and ids:
            tracker.slurm.cancel(ids, "TERM")
        tracker.poll_within(LOOK_S)


def withdraw(tracker: Tracker, run: Run) -> None:
    """Withdraw the run if it has not begun."""
    submission = tracker.submissions.get(run)
    if submission is None:
        return
    if submission.is_array:
        for tracked in submission.tracked_runs.values():
            tracker.withdraw(tracked)
        submission.refusal = WITHDRAWN
        tracker.mark_for_cancel(submission)
        tracker.end_withdrawn_array(submission)
    elif tracker.withdraw(submission.tracked_runs[run.name]):
        tracker.mark_for_cancel(submission)
        tracker.end(submission.tracked_runs[run.name], End(problem=WITHDRAWN))


def signal(tracker: Tracker, run: Run, number: int) -> None:
    tracked = tracker.tracked_runs.get(run.name)
    if tracked is not None and tracked.claim is not None:
        tracker.slurm.cancel([tracked.claim.id], str(abs(number)), to_batch_only=number < 0)


def stop_due(tracker: Tracker) -> None:
    """Cancel the jobs whose grace time is over, and repeat every RETRY_S until they end."""
    now = tracker.clock()
    for submission in tracker.submissions.values():
        if submission.kill_at and now >= submission.kill_at and not tracker.is_down:
            ids = [
                tracked.claim.id
                for tracked in submission.tracked_runs.values()
                if tracked.stop_requested and tracked.claim
            ]
            if ids:
                tracker.slurm.cancel(ids)
            submission.kill_at = now + RETRY_S


def _find_submission(tracker: Tracker, run: Run) -> SlurmSubmission | None:
    tracked = tracker.tracked_runs.get(run.name)
    return tracked.submission if tracked is not None else None
