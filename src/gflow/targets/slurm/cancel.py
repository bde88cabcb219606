"""Cancelling: withdraw runs that have not begun by their claim token; stop the others, TERM first.

A Slurm job is signalled or cancelled only after a listing of the queue shows that its id still has our tag: a
controller that lost its state gives the id to another job.
"""

from __future__ import annotations

from collections.abc import Iterable

from gflow.core.ids import task_of
from gflow.core.reasons import WITHDRAWN
from gflow.targets.port import End, Run
from gflow.targets.slurm.candidate import NO_ANSWER, Action, Scancel
from gflow.targets.slurm.commands.command_runner import CommandResult
from gflow.targets.slurm.commands.identities import MARK
from gflow.targets.slurm.commands.slurm_cli import Row
from gflow.targets.slurm.shared_folder import RunFile
from gflow.targets.slurm.submission import SlurmSubmission, TrackedRun, read_tag
from gflow.targets.slurm.tracker import Tracker

# Seconds between two scancel calls for a job that does not end.
RETRY_S = 30.0


def stop(tracker: Tracker, run: Run, *, now: bool) -> None:
    """Withdraw the run if it has not begun; else send TERM and, after the grace time, cancel it."""
    _request(tracker, run, Action.KILL if now else Action.STOP)


def withdraw(tracker: Tracker, run: Run) -> None:
    """Withdraw the run if it has not begun."""
    if run in tracker.submissions:
        _request(tracker, run, Action.WITHDRAW)


def _request(tracker: Tracker, run: Run, action: Action) -> None:
    """Note an action on a run, or on all tasks of an array, and carry it out if possible.

    Where each call costs a round trip, the turn that follows carries out all that were noted.
    """
    submission = tracker.submissions.get(run)
    if submission is None:
        runs = [tracker.tracked_runs[run.name]] if run.name in tracker.tracked_runs else []
    else:
        runs = list(submission.tracked_runs.values())
        if submission.is_array:
            submission.refusal = submission.refusal or WITHDRAWN
            tracker.mark_for_cancel(submission)
        if run in tracker.unprepared and submission.launch.is_new:
            _end_unprepared(tracker, submission)
            return
    for tracked in runs:
        tracker.request(tracked, action)
    if not tracker.shared_folder.is_remote:
        carry_out(tracker, runs)


def _end_unprepared(tracker: Tracker, submission: SlurmSubmission) -> None:
    """End a submission that no daemon has asked Slurm for, also if the cluster does not answer."""
    if not tracker.daemon:  # the folder could never be used: there are no files to delete
        tracker.untouched.update(submission.tracked_runs)
    for tracked in list(submission.tracked_runs.values()):
        tracked.is_withdrawn = True
        if not submission.is_array:
            tracker.end(tracked, End(problem=WITHDRAWN))
    if submission.is_array:
        tracker.end_withdrawn_array(submission)


def carry_out(tracker: Tracker, runs: Iterable[TrackedRun]) -> None:
    """Carry out the actions noted for these runs. An action that the shared folder prevents stays noted."""
    ready = [tracked for tracked in runs if tracked.submission.is_prepared]
    groups = [ready] if ready and tracker.shared_folder.is_remote else [[tracked] for tracked in ready]
    for group in groups:
        try:
            is_withdrawn = tracker.withdraw_all(group)
            told = [one for one in group if not is_withdrawn[one.name] and one.action is not Action.WITHDRAW]
            if told:
                tracker.shared_folder.write((), [RunFile(one.name, "stop", b"") for one in told])
        except OSError as error:
            for tracked in group:
                tracker.report_trouble(tracked.submission, error)
            continue
        for tracked in group:
            _carry_out(tracker, tracked, is_withdrawn=is_withdrawn[tracked.name])


def _carry_out(tracker: Tracker, tracked: TrackedRun, *, is_withdrawn: bool) -> None:
    submission, action = tracked.submission, tracked.action
    if not is_withdrawn and action is not Action.WITHDRAW:
        _tell(tracker, tracked, now=action is Action.KILL)
    tracked.action = None
    tracker.pending_actions.pop(tracked.name, None)
    if submission.is_array and submission.refusal:
        tracker.end_withdrawn_array(submission)
    elif is_withdrawn:
        tracker.mark_for_cancel(submission, tracked.name)
        tracker.end(tracked, End(problem=submission.refusal or WITHDRAWN))


def _tell(tracker: Tracker, tracked: TrackedRun, *, now: bool) -> None:
    """Ask a run that may have begun to stop, and note when it is killed. Its stop file is there."""
    submission = tracked.submission
    jobs = [] if now else _jobs_of(tracker, tracked)
    for id, tag in jobs:
        tracker.order_scancel(Scancel(id, tag, "TERM"))
    tracked.stop_requested = True
    grace_s = 0.0 if now else float(submission.launch.job.spec.grace_s)
    tracked.kill_at = tracker.clock() + grace_s
    tracker.stopping[tracked.name] = tracked


def _jobs_of(tracker: Tracker, tracked: TrackedRun) -> list[tuple[str, str]]:
    """Ids and tags of the Slurm jobs that may run it: the one that claimed it, else all candidates."""
    submission = tracked.submission
    claim = tracked.claim or tracker.shared_folder.claim_of(tracked.name)
    if claim is not None:
        return [(claim.id, submission.tag(tracker.daemon, claim.candidate))]
    return [
        (submission.job_id(candidate, tracked), submission.tag(tracker.daemon, candidate.number))
        for candidate in submission.candidates_of(task_of(tracked.run.key))
        if candidate.id
    ]


def signal(tracker: Tracker, run: Run, number: int) -> None:
    tracked = tracker.tracked_runs.get(run.name)
    if tracked is not None and tracked.claim is not None:
        ((id, tag),) = _jobs_of(tracker, tracked)
        tracker.order_scancel(Scancel(id, tag, str(abs(number)), to_batch_only=number < 0))


def kill_due(tracker: Tracker) -> None:
    """Cancel the jobs whose grace time is over, and repeat every RETRY_S until they end."""
    now = tracker.clock()
    for tracked in tracker.stopping.values():
        if now >= tracked.kill_at and not tracker.is_down:
            for id, tag in _jobs_of(tracker, tracked):
                tracker.order_scancel(Scancel(id, tag))
            tracked.kill_at = now + RETRY_S


def send(tracker: Tracker, rows: Iterable[Row], listed: int) -> None:
    """Call scancel for orders whose job the listing shows with its tag; drop those whose job is gone.

    `listed`: the tick at which the listing began. A job that is not in it may be newer.
    """
    alive = _alive_tags(tracker, rows)
    due: dict[tuple[object, ...], list[Scancel]] = {}
    for order, ordered in list(tracker.scancels.items()):
        if order.tag in alive.get(order.id, ()):
            due.setdefault(order[2:], []).append(order)
        elif ordered < listed and order.id not in tracker.identities.unclear:
            del tracker.scancels[order]
    for orders in due.values():
        _call(tracker, [order for order in orders if order not in tracker.sent_scancels])


def _alive_tags(tracker: Tracker, rows: Iterable[Row]) -> dict[str, set[str]]:
    """The tags of the jobs that have not ended, by id. A task has that of its array, and one of its own."""
    alive: dict[str, set[str]] = {}
    for row in rows:
        if row.is_final:
            continue
        for number in (row.id, row.array):
            alive.setdefault(number, set()).add(row.comment)
        if row.task is not None and (tagged := read_tag(row.comment, tracker.daemon, row.task)) is not None:
            alive[row.id].add(f"{MARK}{tracker.daemon}:{tagged.run}:{tagged.candidate}")
    return alive


def _call(tracker: Tracker, orders: list[Scancel]) -> None:
    if not orders:
        return
    first, ids = orders[0], sorted(order.id for order in orders)
    tracker.sent_scancels.update(orders)

    def done(result: CommandResult) -> None:
        tracker.sent_scancels.difference_update(orders)
        if result.unsure:
            tracker.mark_down(result.error)  # the orders stay
            return
        for order in orders:
            tracker.scancels.pop(order, None)

    tracker.calls.start(
        lambda: tracker.slurm.cancel(
            ids, first.signal, to_batch_only=first.to_batch_only, only_pending=first.only_pending
        ),
        done,
        NO_ANSWER,
    )
