"""Polling: read the files of jobs in the shared folder, and query Slurm's queue once for all jobs.

The end of a run comes from the exit record that the job wrote; without one, from Slurm's job state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from gflow.core.reasons import LOST, PREEMPTED, TIME_LIMIT, WITHDRAWN, Reason, ReasonKind
from gflow.targets.port import End
from gflow.targets.slurm.commands import slurm_cli
from gflow.targets.slurm.commands.reasons import in_words
from gflow.targets.slurm.shared_folder import Exit, RunFiles
from gflow.targets.slurm.commands.slurm_cli import Row, Verdict
from gflow.targets.slurm.tracker import (
    LOOK_S,
    Candidate,
    RowTag,
    SlurmSubmission,
    Stage,
    TrackedRun,
    Tracker,
    read_tag,
)

log = logging.getLogger("gflow.slurm")
# A candidate is submitted again when this many queue listings, over this many seconds, do not contain it.
MISSING_POLLS = 3
MISSING_S = 5.0
# Resubmissions of one job that a restarted controller ended before it began.
MAX_RESUBMISSIONS = 3
# A daemon that has just started learns of its jobs one by one. For this many seconds no job with our tag is
# treated as unknown.
ADOPTION_S = 20.0
# The exit record of a job may appear after Slurm reports the end. Wait this many seconds for it.
RECORD_S = 3.0
UNKNOWN = "Unknown: Slurm does not know this job any more, and it left no exit record"
Rows = dict[str, list[tuple[RowTag, Row]]]


# ---------------------------------------------------------------- the shared folder


def read_shared_folder(tracker: Tracker) -> None:
    """Apply the files that jobs have written to the shared folder."""
    for name, found in tracker.shared_folder.look().items():
        tracked = tracker.tracked_runs.get(name)
        if tracked is not None:
            _apply_files(tracker, tracked, found)


def _apply_files(tracker: Tracker, tracked: TrackedRun, found: RunFiles) -> None:
    if found.withdrawn and not tracked.submission.is_array:
        tracker.end(tracked, End(problem=WITHDRAWN))
        return
    if found.claim is not None and tracked.claim is None:
        tracked.claim = found.claim
        tracker.report(tracked, running=True, id=found.claim.id)
        for candidate in tracked.submission.candidates:  # one candidate has won the race
            if candidate.number != found.claim.candidate and candidate.id:
                tracker.to_cancel[candidate.id] = tracked.submission.tag(tracker.daemon, candidate.number)
        tracker.poll_now()
    if found.exit and not tracked.has_exit:
        tracked.has_exit = True
        record = tracker.shared_folder.read_exit(tracked.name)
        if record is not None and record.code is not None and not record.was_signalled:
            tracker.end(tracked, End(record.code))
        else:  # it was signalled: only Slurm knows why
            tracker.poll_now()


# ---------------------------------------------------------------- the queue


def poll(tracker: Tracker) -> None:
    """Query the queue once and update every tracked run from the answer."""
    result = tracker.slurm.queue()
    if not result.ok:
        tracker.mark_down(result.error)
        return
    tracker.mark_up()
    # After the query: most runs that are over in the answer have written their exit record by now.
    read_shared_folder(tracker)
    rows: Rows = {}
    all_rows = slurm_cli.parse_queue(result.text)
    for row in all_rows:
        tagged = read_tag(row.comment, tracker.daemon, row.task)
        if tagged is not None and row.id not in tracker.ignored_ids:
            rows.setdefault(tagged.run, []).append((tagged, row))
    _match_candidates(tracker, rows)
    _cancel_marked(tracker, all_rows)
    for tracked in list(tracker.tracked_runs.values()):
        _apply_rows(tracker, tracked, rows.get(tracked.name, []))
    # A run that is being stopped ends soon, and may leave no exit record.
    changed = bool(tracker.pending_reports) or any(
        tracked.stop_requested for tracked in tracker.tracked_runs.values()
    )
    least, most = tracker.cluster.poll_secs, tracker.cluster.poll_most_secs
    tracker.pause_s = least if changed else min(most, max(least, tracker.pause_s * 2))
    tracker.poll_at = tracker.clock() + tracker.pause_s


def _match_candidates(tracker: Tracker, rows: Rows) -> None:
    """Match queue rows to candidates: resubmit candidates without a row, cancel rows without a run."""
    found: dict[tuple[str, int], str] = {}
    for tagged, row in [one for of_unit in rows.values() for one in of_unit]:
        if row.state == "PENDING" and _is_unwanted(tracker, tagged, row):
            tracker.to_cancel[row.id] = row.comment
        if not row.is_final or (tagged.submission, tagged.candidate) not in found:
            found[tagged.submission, tagged.candidate] = row.array if row.task is not None else row.id
    for submission in tracker.submissions.values():
        for candidate in submission.candidates:
            _update_candidate(
                tracker, submission, candidate, found.get((submission.run.name, candidate.number))
            )


def _cancel_marked(tracker: Tracker, rows: list[Row]) -> None:
    """Cancel the marked jobs that still exist and still have our tag."""
    alive = {number: row.comment for row in rows if not row.is_final for number in (row.id, row.array)}
    ids = sorted(id for id, tag in tracker.to_cancel.items() if alive.get(id) == tag)
    if not ids or not tracker.slurm.cancel(ids).unsure:
        tracker.to_cancel.clear()


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
        candidate.stage, candidate.id, candidate.missing = Stage.SENT, id, 0
    elif candidate.stage is Stage.UNSURE:
        candidate.stage = Stage.NEW  # Slurm answers, and the job is not there
    elif candidate.stage is Stage.SENT and tracker.clock() - candidate.sent_at > MISSING_S:
        candidate.missing += 1
        if candidate.missing >= MISSING_POLLS and _has_unclaimed(tracker, submission):
            log.warning("Slurm lost %s: it is submitted again", submission.run.name)
            candidate.stage, candidate.missing = Stage.NEW, 0


def _has_unclaimed(tracker: Tracker, submission: SlurmSubmission) -> bool:
    """Whether any run of the submission has neither begun nor been withdrawn."""
    tracked_runs = submission.tracked_runs.values()
    return any(
        tracked.claim is None and os.path.exists(tracker.shared_folder.path(tracked.name, "ticket"))
        for tracked in tracked_runs
    )


def _apply_rows(tracker: Tracker, tracked: TrackedRun, rows: list[tuple[RowTag, Row]]) -> None:
    """Update one tracked run from its queue rows."""
    if tracked.claim is None:
        alive = [row for _, row in rows if not row.is_final]
        if alive:
            best = min(alive, key=lambda row: row.state == "PENDING")
            if best.state == "PENDING":
                tracker.report(tracked, reason=in_words(best.reason), id=best.id)
        elif len({tagged.candidate for tagged, _ in rows}) == len(tracked.submission.candidates):
            _handle_final(tracker, tracked, rows[-1][1])
        return
    row = next((row for _, row in rows if row.id == tracked.claim.id), None)
    if row is None:
        _handle_absent(tracker, tracked)
    elif row.is_final:
        _handle_final(tracker, tracked, row)
    else:
        tracked.absent_since = tracked.final_since = 0.0
        tracker.report(tracked, running=True, id=tracked.claim.id, nodes=row.nodes)


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
    end = end_of(final_run, lambda: tracker.slurm.verdict(row.id, row.comment))
    if end is None:
        tracker.poll_within(LOOK_S)
    elif tracked.claim is None and not tracker.withdraw(tracked):
        tracker.must_read_folder = True  # it began after all: its exit record is read with the next look
    else:
        tracker.end(tracked, end)


def _resubmit(tracker: Tracker, tracked: TrackedRun, row: Row) -> bool:
    """Submit the run again if a controller that has just restarted ended it before it began.

    Such a controller reuses job ids, and nodes that still know the first job refuse the second.
    """
    submission = tracked.submission
    fine = (
        tracked.claim is None and tracker.is_shaky and not submission.is_array and not tracked.stop_requested
    )
    if not fine or submission.resubmissions >= MAX_RESUBMISSIONS or not _has_unclaimed(tracker, submission):
        return False
    log.warning("Slurm ended %s (%s) before it began: it is submitted again", tracked.name, row.state)
    submission.resubmissions += 1
    for candidate in submission.candidates:
        tracker.ignored_ids.add(candidate.id)
        candidate.stage, candidate.missing = Stage.NEW, 0
    tracker.ignored_ids.add(row.id)
    return True


def _handle_absent(tracker: Tracker, tracked: TrackedRun) -> None:
    """Handle a run that has begun and is no longer in Slurm's queue."""
    now = tracker.clock()
    assert tracked.claim is not None
    tracked.absent_since = tracked.absent_since or now
    record = tracker.shared_folder.read_exit(tracked.name)
    # Its job id may have been reused by now, also for a job of ours.
    verdict = tracker.slurm.verdict(
        tracked.claim.id, tracked.submission.tag(tracker.daemon, tracked.claim.candidate)
    )
    if record is not None and record.code is not None:
        tracker.end(tracked, End(record.code))
    elif verdict is not None and verdict.state in slurm_cli.FINAL:
        final_run = FinalRun(verdict.state, True, record, True, tracked.submission.launch.log)
        tracker.end(tracked, end_of(final_run, lambda: verdict) or End(problem=LOST))
    elif now - tracked.absent_since > tracker.cluster.lost_after_secs:
        tracker.end(tracked, End(problem=LOST))
    else:
        tracker.report(tracked, running=True, id=tracked.claim.id, reason=UNKNOWN)


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
