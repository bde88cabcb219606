"""Polling: read the files of jobs in the shared folder, and query Slurm's queue once for all jobs.

The end of a run comes from the exit record that the job wrote; without one, from Slurm's job state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gflow.core.ids import task_of
from gflow.core.reasons import LOST, PREEMPTED, TIME_LIMIT, WITHDRAWN, Reason, ReasonKind
from gflow.targets.port import End
from gflow.targets.slurm import cancel, race_order
from gflow.targets.slurm.array_parts import set_of
from gflow.targets.slurm.candidate import NO_ANSWER, Candidate, Scancel, Stage
from gflow.targets.slurm.commands import slurm_cli
from gflow.targets.slurm.commands.command_runner import CommandResult
from gflow.targets.slurm.commands.reasons import in_words
from gflow.targets.slurm.commands.slurm_cli import Row, Verdict
from gflow.targets.slurm.shared_folder import Exit, RunFiles
from gflow.targets.slurm.submission import RowTag, SlurmSubmission, TrackedRun, read_tag
from gflow.targets.slurm.tracker import Tracker

log = logging.getLogger("gflow.slurm")
# A candidate is submitted again when this many queue listings, over this many seconds, do not contain it.
MISSING_POLLS = 3
MISSING_S = 5.0
# Resubmissions of one job that its node or a restarted controller ended before it began.
MAX_RESUBMISSIONS = 3
# States of jobs that their nodes, not they themselves, ended.
NODE_PROBLEMS = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})
# Submissions of one job again because the queue does not show it, while the controller answers.
MAX_COPIES = 3
NOT_SHOWN = (
    "NotShown: it was submitted several times, and Slurm's queue does not show it; gjob hold and gjob release"
    " submit it again"
)
# A daemon that has just started learns of its jobs one by one. For this many seconds no job with our tag is
# treated as unknown.
ADOPTION_S = 20.0
# The exit record of a job may appear after Slurm reports the end. Wait this many seconds for it.
RECORD_S = 3.0
# The accounting lags: for this many seconds a job that was told to stop waits for its state there.
ACCOUNTING_S = 10.0
UNKNOWN = "Unknown: Slurm does not know this job any more, and it left no exit record"
Rows = dict[str, list[tuple[RowTag, Row]]]


# ---------------------------------------------------------------- the shared folder


def apply_files(tracker: Tracker, files: dict[str, RunFiles]) -> None:
    """Apply the files that jobs have written to the shared folder. `files`: its listing."""
    for name, found in files.items():
        tracked = tracker.tracked_runs.get(name)
        if tracked is not None:
            _apply_to(tracker, tracked, found)


def _apply_to(tracker: Tracker, tracked: TrackedRun, found: RunFiles) -> None:
    if not tracked.submission.is_prepared:
        return
    if found.withdrawn and not tracked.submission.is_array:
        tracker.end(tracked, End(problem=WITHDRAWN))
        return
    if found.claim is not None and tracked.claim is None:
        tracked.claim = found.claim
        tracker.report(tracked, running=True, id=found.claim.id)
        rivals = [] if tracked.submission.is_split else tracked.submission.candidates
        for candidate in rivals:  # one candidate has won the race
            if candidate.number != found.claim.candidate and candidate.id:
                tag = tracked.submission.tag(tracker.daemon, candidate.number)
                tracker.order_scancel(Scancel(candidate.id, tag))
        tracker.poll_now()
    if found.exit and not tracked.has_exit:
        record = tracker.shared_folder.read_exit(tracked.name)
        tracked.has_exit = True
        if record is not None and record.is_end:
            tracker.end(tracked, End(record.code))
        else:  # a signal ended it: only Slurm knows why
            tracker.poll_now()


# ---------------------------------------------------------------- the queue


def start_poll(tracker: Tracker) -> None:
    """Query the queue in the background, and update every tracked run from the answer."""
    if tracker.is_polling:
        return
    tracker.is_polling = True
    listed = tracker.tick()
    tracker.calls.start(tracker.slurm.queue, lambda result: _apply_queue(tracker, result, listed), NO_ANSWER)


def _apply_queue(tracker: Tracker, result: CommandResult, listed: int) -> None:
    """Apply a listing of the queue that began at the tick `listed`."""
    tracker.is_polling = False
    if not result.ok:
        tracker.mark_down(result.error)
        return
    tracker.mark_up()
    rows = slurm_cli.parse_queue(result.text)
    ordered = {order.tag: tick for order, tick in tracker.scancels.items()}
    rows = tracker.identities.resolve(rows, tracker.known_tags(), ordered)
    try:
        # After the query: most runs that are over in the answer have written their exit record by now.
        apply_files(tracker, tracker.shared_folder.look_after_poll())
    except OSError as error:  # without the records of the jobs the answer says too little
        tracker.report_folder_error(error)
    else:
        _apply_listing(tracker, rows, listed)
    cancel.send(tracker, rows, listed)
    tracker.identities.ask()
    _set_next_poll(tracker, listed)


def _apply_listing(tracker: Tracker, all_rows: list[Row], listed: int) -> None:
    rows: Rows = {}
    for row in all_rows:
        tagged = read_tag(row.comment, tracker.daemon, row.task)
        if tagged is not None and row.id not in tracker.ignored_ids:
            rows.setdefault(tagged.run, []).append((tagged, row))
    tracker.is_unsettled = bool(tracker.identities.unclear)
    _match_candidates(tracker, rows, listed)
    race_order.review(tracker, rows)
    for tracked in list(tracker.tracked_runs.values()):
        of_run = rows.get(tracked.name, [])
        if tracked.submission.is_prepared and (
            of_run or not tracked.submission.is_newer_than(listed, tracked)
        ):
            try:
                _apply_rows(tracker, tracked, of_run)
            except OSError as error:
                tracker.report_trouble(tracked.submission, error)
    _repeat_lost_tasks(tracker)
    tracker.inquiries.ask()


def _set_next_poll(tracker: Tracker, listed: int) -> None:
    # A run that is being stopped ends soon, and may leave no exit record. One with a record has ended.
    changed = bool(tracker.pending_reports or tracker.stopping or tracker.is_unsettled) or any(
        tracked.has_exit for tracked in tracker.tracked_runs.values()
    )
    least, most = tracker.cluster.poll_secs, tracker.cluster.poll_most_secs
    tracker.pause_s = least if changed else min(most, max(least, tracker.pause_s * 2))
    tracker.poll_at = tracker.clock() + tracker.pause_s
    unsent = tracker.scancels.keys() - tracker.sent_scancels
    if any(tracker.scancels[order] > listed for order in unsent):
        tracker.poll_at = 0.0  # ordered while the listing was made


def _match_candidates(tracker: Tracker, rows: Rows, listed: int) -> None:
    """Match queue rows to candidates: resubmit candidates without a row, cancel rows without a run."""
    found: dict[tuple[str, int], str] = {}
    for tagged, row in [one for of_unit in rows.values() for one in of_unit]:
        if row.state == "PENDING" and _is_unwanted(tracker, tagged, row):
            tracker.order_scancel(Scancel(row.id, row.comment))
        if not row.is_final or (tagged.submission, tagged.candidate) not in found:
            found[tagged.submission, tagged.candidate] = row.array if row.task is not None else row.id
    for submission in tracker.submissions.values():
        for candidate in submission.candidates:
            is_listed = candidate.returned < listed and not candidate.is_being_sent
            if is_listed and candidate.id not in tracker.identities.unclear:
                id = found.get((submission.run.name, candidate.number))
                _update_candidate(tracker, submission, candidate, id)


def _is_unwanted(tracker: Tracker, tagged: RowTag, row: Row) -> bool:
    """Whether this row is a duplicate of a run that began elsewhere, or belongs to no tracked run.

    Such a job would find no claim token and exit at once.
    """
    tracked = tracker.tracked_runs.get(tagged.run)
    if tracked is None:
        return tracker.clock() - tracker.created_at > ADOPTION_S
    return tracked.claim is not None and tracked.claim.id != row.id


def _update_candidate(
    tracker: Tracker, submission: SlurmSubmission, candidate: Candidate, id: str | None
) -> None:
    """Update a candidate with its job id in the queue; None: the queue does not contain it."""
    if id is not None and candidate.stage in (Stage.UNSURE, Stage.SENT):
        candidate.id, candidate.missing = id, 0
        tracker.set_stage(submission, candidate, Stage.SENT)
    elif candidate.stage in (Stage.UNSURE, Stage.SENT) and tracker.clock() - candidate.sent_at > MISSING_S:
        candidate.missing += 1
        if _has_unclaimed(tracker, submission.runs_of(candidate)):
            tracker.is_unsettled = True
            if candidate.missing >= MISSING_POLLS:
                _handle_missing(tracker, submission, candidate)


def _handle_missing(tracker: Tracker, submission: SlurmSubmission, candidate: Candidate) -> None:
    """Handle a candidate that is not in the queue: ask how it ended; submit it again if it was lost."""
    if candidate.id:
        answer = tracker.inquiries.answer(candidate.id, submission.tag(tracker.daemon, candidate.number))
        if answer is None:
            return
        if _is_final(submission, answer.verdict):
            assert answer.verdict is not None
            candidate.end_state = answer.verdict.state
            tracker.set_stage(submission, candidate, Stage.ENDED)
            return
    if candidate.copies >= MAX_COPIES:
        tracker.report_submission(submission, NOT_SHOWN)
        return
    log.warning("Slurm lost %s: it is submitted again", submission.run.name)
    candidate.missing, candidate.copies = 0, candidate.copies + 1
    tracker.set_stage(submission, candidate, Stage.NEW)


def _is_final(submission: SlurmSubmission, verdict: Verdict | None) -> bool:
    """Whether a verdict is about a job of this submission, and final. Accounting knows only its name."""
    job = submission.launch.job
    names = ("", job.file_name, f"job-{job.number}")  # a task may have the name of its array
    return verdict is not None and verdict.state in slurm_cli.FINAL and verdict.name in names


def _has_unclaimed(tracker: Tracker, runs: Iterable[TrackedRun]) -> bool:
    """Whether any of these runs has neither begun nor been withdrawn."""
    return any(tracked.claim is None and tracker.shared_folder.has_token(tracked.name) for tracked in runs)


def _apply_rows(tracker: Tracker, tracked: TrackedRun, rows: list[tuple[RowTag, Row]]) -> None:
    """Update one tracked run from its queue rows."""
    if tracked.claim is None:
        alive = [row for _, row in rows if not row.is_final]
        if alive:
            best = min(alive, key=lambda row: row.state == "PENDING")
            if best.state == "PENDING":
                reason = tracked.submission.race.note or in_words(best.reason)
                tracker.report(tracked, reason=reason, id=best.id)
        elif (row := _last_row(tracker, tracked, rows)) is not None:
            _handle_final(tracker, tracked, row)
        elif not rows and tracked.submission.is_array:
            _handle_missing_task(tracker, tracked)
        return
    row = next((row for _, row in rows if row.id == tracked.claim.id), None)
    if row is None and tracked.claim.id in tracker.identities.unclear:
        return
    if row is None:
        _handle_absent(tracker, tracked)
    elif row.is_final:
        _handle_final(tracker, tracked, row)
    else:
        tracked.absent_since = tracked.final_since = 0.0
        tracker.report(tracked, running=True, id=tracked.claim.id, nodes=row.nodes)


def _last_row(tracker: Tracker, tracked: TrackedRun, rows: list[tuple[RowTag, Row]]) -> Row | None:
    """The row by which a run that has not begun is over: no candidate of it is left. None: it is not over."""
    submission = tracked.submission
    candidates = submission.candidates_of(task_of(tracked.run.key))
    numbers = {one.number for one in candidates}
    is_other = submission.is_split  # rows of a part that it was in before
    ended = {tagged.candidate: row for tagged, row in rows if tagged.candidate in numbers or not is_other}
    for candidate in candidates:
        if candidate.stage is Stage.ENDED:
            tag = submission.tag(tracker.daemon, candidate.number)
            ended[candidate.number] = _row_of(submission.job_id(candidate, tracked), candidate.end_state, tag)
    refused = {one.number for one in candidates if one.stage is Stage.REFUSED}
    is_over = len(ended.keys() | refused) == len(candidates)
    return list(ended.values())[-1] if ended and is_over else None


def _row_of(id: str, state: str, tag: str) -> Row:
    """A row as the queue would show it, for a job that it shows no more."""
    return Row(id, id.partition("_")[0], None, state, "", "", tag)


def _handle_missing_task(tracker: Tracker, tracked: TrackedRun) -> None:
    """Handle a task that has not begun and is not in the queue, though other tasks of its array are.

    Slurm has not lost the array, so the task was cancelled there and forgotten.
    """
    candidate = tracked.submission.candidates_of(task_of(tracked.run.key))[0]
    now = tracker.clock()
    if candidate.stage is not Stage.SENT or candidate.missing or now - candidate.sent_at < MISSING_S:
        return
    tracked.missing += 1
    tracked.absent_since = tracked.absent_since or now
    tracker.is_unsettled = True
    if tracked.missing < MISSING_POLLS:
        return
    id = tracked.submission.job_id(candidate, tracked)
    tag = tracked.submission.tag(tracker.daemon, candidate.number)
    answer = tracker.inquiries.answer(id, tag)
    if answer is not None and _is_final(tracked.submission, answer.verdict):
        assert answer.verdict is not None
        _handle_final(tracker, tracked, _row_of(id, answer.verdict.state, tag))
    elif now - tracked.absent_since > tracker.cluster.lost_after_secs:
        _handle_final(tracker, tracked, _row_of(id, "CANCELLED", tag))


def _handle_final(tracker: Tracker, tracked: TrackedRun, row: Row) -> None:
    """Handle a row in a final state: resubmit the run, or record its end."""
    if _resubmit(tracker, tracked, row):
        return
    now = tracker.clock()
    tracked.final_since = tracked.final_since or now
    final_run = FinalRun(
        state=row.state,
        has_begun=tracked.claim is not None,
        record=tracker.shared_folder.read_exit(tracked.name),
        has_waited=now - tracked.final_since >= RECORD_S,
        log=tracked.submission.launch.log,
    )
    end = end_of(final_run, lambda: _verdict_of(tracker, row))
    if end is None:
        tracker.is_unsettled = True
    elif tracked.claim is None and not tracker.withdraw(tracked):
        tracker.must_read_folder = True  # it began after all: its exit record is read with the next look
    else:
        tracker.end(tracked, end)


def _verdict_of(tracker: Tracker, row: Row) -> Verdict | None:
    answer = tracker.inquiries.answer(row.id, row.comment)
    return answer.verdict if answer is not None else None


def _resubmit(tracker: Tracker, tracked: TrackedRun, row: Row) -> bool:
    """Submit the run again if its node, or a controller that has just restarted, ended it before it began.

    Such a controller reuses job ids, and nodes that still know the first job refuse the second. A restart
    may be too short for us to notice.
    """
    submission = tracked.submission
    is_forgiven = tracker.is_shaky or row.state in NODE_PROBLEMS
    if tracked.claim is not None or not is_forgiven or tracked.stop_requested:
        return False
    task = task_of(tracked.run.key) if submission.is_array else None
    counted = submission if task is None else tracked
    is_race = task is not None and len(submission.candidates) > 1 and not submission.is_split
    if is_race or counted.resubmissions >= MAX_RESUBMISSIONS or not _has_unclaimed(tracker, [tracked]):
        return False
    log.warning("Slurm ended %s (%s) before it began: it is submitted again", tracked.name, row.state)
    counted.resubmissions += 1
    tracker.ignored_ids.add(row.id)
    if task is not None:
        submission.lost_tasks.add(task)
        return True
    for candidate in submission.candidates:
        tracker.ignored_ids.add(candidate.id)
        candidate.missing = 0
        tracker.set_stage(submission, candidate, Stage.NEW)
    return True


def _repeat_lost_tasks(tracker: Tracker) -> None:
    """Make parts of the tasks of arrays that are submitted again."""
    for submission in tracker.submissions.values():
        if submission.lost_tasks:
            for candidate in submission.repeat(set_of(sorted(submission.lost_tasks))):
                tracker.set_stage(submission, candidate, Stage.NEW)
            submission.lost_tasks.clear()


def _handle_absent(tracker: Tracker, tracked: TrackedRun) -> None:
    """Handle a run that has begun and is no longer in Slurm's queue."""
    now = tracker.clock()
    assert tracked.claim is not None
    tracked.absent_since = tracked.absent_since or now
    tag = tracked.submission.tag(tracker.daemon, tracked.claim.candidate)
    answer = tracker.inquiries.answer(tracked.claim.id, tag)
    if answer is None:
        tracker.is_unsettled = True
        return
    record, verdict = tracker.shared_folder.read_exit(tracked.name), answer.verdict
    if _is_final(tracked.submission, verdict):
        assert verdict is not None
        final_run = FinalRun(verdict.state, True, record, True, tracked.submission.launch.log)
        tracker.end(tracked, end_of(final_run, lambda: verdict) or End(problem=LOST))
    elif record is not None and record.code is not None:
        if record.is_end or now - tracked.absent_since >= ACCOUNTING_S:
            tracker.end(tracked, _end_by_record(tracked, record))
    elif now - tracked.absent_since > tracker.cluster.lost_after_secs:
        tracker.end(tracked, End(problem=LOST))
    else:
        tracker.report(tracked, running=True, id=tracked.claim.id, reason=UNKNOWN)


def _end_by_record(tracked: TrackedRun, record: Exit) -> End:
    """The end of a run of which only its own record is left.

    A job with --requeue that was told to stop and did not succeed is requeued: Slurm took its node.
    """
    was_stopped = not record.is_end and record.code != 0 and not tracked.stop_requested
    requeues = was_stopped and tracked.submission.launch.job.spec.requeue
    return End(record.code, None, PREEMPTED) if requeues else End(record.code)


# States that Slurm decides; they take precedence over the job's exit code.
PROBLEMS = {
    "TIMEOUT": TIME_LIMIT,
    "DEADLINE": TIME_LIMIT,
    "CANCELLED": Reason(ReasonKind.CANCELLED_THERE),
    "REVOKED": Reason(ReasonKind.CANCELLED_THERE),
    "NODE_FAIL": Reason(ReasonKind.NODE_FAIL),
    "BOOT_FAIL": Reason(ReasonKind.NODE_FAIL),
    "PREEMPTED": PREEMPTED,
    "OUT_OF_MEMORY": Reason(ReasonKind.OUT_OF_MEMORY, "more than Slurm gave it; ask for more with --memory"),
}
# Slurm's exit signal of a job whose log could not be created.
NO_LOG = 53


class FinalRun(NamedTuple):
    """A run that Slurm reports in a final state."""

    state: str
    has_begun: bool
    record: Exit | None
    # Whether RECORD_S have passed since the final state was first seen.
    has_waited: bool
    log: str


def end_of(final_run: FinalRun, ask: Callable[[], Verdict | None]) -> End | None:
    """The end of a run; None: not known yet. `ask` queries scontrol or sacct; called only if needed."""
    state, record = final_run.state, final_run.record
    if state in PROBLEMS:
        return End(record.code if record else None, None, PROBLEMS[state])
    if record is not None and record.code is not None:
        return End(record.code)
    if record is not None:  # Slurm requeued the job and started it a second time
        return End(problem=PREEMPTED)
    if not final_run.has_waited:
        return None
    verdict = ask()
    if verdict is None:
        return None
    if verdict.signal == NO_LOG and not final_run.has_begun:
        return _start_failed(f"no log at {final_run.log}")
    if not final_run.has_begun:
        return _start_failed(f"Slurm says {verdict.state} before it began")
    if verdict.signal:
        return End(None, verdict.signal)
    return End(verdict.code)


def _start_failed(why: str) -> End:
    return End(problem=Reason(ReasonKind.START_FAILED, why))
