"""The clerk asks: the folder what jobs say of themselves, and Slurm's queue about all of them at once.

How a run ended: by its own word, then by Slurm's. Pure, but for the question that is handed in.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from gflow.core.lifecycle.finish import RECALLED
from gflow.targets.port import End
from gflow.targets.slurm import slurm_cli
from gflow.targets.slurm.reasons import in_words
from gflow.targets.slurm.shared_folder import Exit, Found
from gflow.targets.slurm.slurm_cli import Row, Verdict
from gflow.targets.slurm.tracker import (
    LOOK_S,
    Candidate,
    SlurmSubmission,
    Stage,
    Tagged,
    TrackedRun,
    Tracker,
    read_tag,
)

log = logging.getLogger("gflow.slurm")
# What Slurm does not show is submitted again after so many answers without it, and so many seconds.
MISSING = 3
MISSING_S = 5.0
# So often a restarted controller is forgiven.
AGAIN = 3
# A daemon that has just come hears of its jobs one by one: before this, none is taken for nobody's.
SETTLED_S = 20.0
# A job's own word about its end may come a little after Slurm's: so long it is waited for.
RECORD_S = 3.0
UNKNOWN = "Unknown: Slurm does not know this job any more, and it has not said how it ended"
Rows = dict[str, list[tuple[Tagged, Row]]]


# ---------------------------------------------------------------- the folder


def read_desk(books: Tracker) -> None:
    """What jobs have left there."""
    for name, found in books.desk.look().items():
        unit = books.units.get(name)
        if unit is not None:
            _read(books, unit, found)


def _read(books: Tracker, unit: TrackedRun, found: Found) -> None:
    if found.withdrawn and not unit.errand.is_array:
        books.end(unit, End(None, None, RECALLED))
        return
    if found.claim is not None and unit.claim is None:
        unit.claim = found.claim
        books.sight(unit, running=True, id=found.claim.id)
        for bid in unit.errand.bids:  # the race is over
            if bid.number != found.claim.bid and bid.id:
                books.doomed[bid.id] = unit.errand.tag(books.daemon, bid.number)
        books.soon()
    if found.exit and not unit.has_exit:
        unit.has_exit = True
        record = books.desk.read_exit(unit.name)
        if record is not None and record.code is not None and not record.told:
            books.end(unit, End(record.code, None, ""))
        else:  # it was told to stop: only Slurm knows why
            books.soon()


# ---------------------------------------------------------------- the queue


def poll(books: Tracker) -> None:
    """One question about all of them."""
    said = books.slurm.queue()
    if not said.ok:
        books.went_down(said.error)
        return
    books.came_back()
    read_desk(books)  # after the question: who has ended by the answer has written so before, mostly
    rows: Rows = {}
    all_rows = slurm_cli.parse_queue(said.text)
    for row in all_rows:
        tagged = read_tag(row.comment, books.daemon, row.task)
        if tagged is not None and row.id not in books.void:
            rows.setdefault(tagged.unit, []).append((tagged, row))
    _find_bids(books, rows)
    _cancel_doomed(books, all_rows)
    for unit in list(books.units.values()):
        _judge(books, unit, rows.get(unit.name, []))
    # What is being stopped ends soon, and may leave no word of its own.
    changed = bool(books.news) or any(unit.stopped for unit in books.units.values())
    least, most = books.cluster.poll_secs, books.cluster.poll_most_secs
    books.pause = least if changed else min(most, max(least, books.pause * 2))
    books.poll_at = books.clock() + books.pause


def _find_bids(books: Tracker, rows: Rows) -> None:
    """Which submissions Slurm has; those that it has not are sent again, those that are nobody's go."""
    found: dict[tuple[str, int], str] = {}
    for tagged, row in [one for of_unit in rows.values() for one in of_unit]:
        if row.state == "PENDING" and _is_unwanted(books, tagged, row):
            books.doomed[row.id] = row.comment
        if not row.is_final or (tagged.run, tagged.bid) not in found:
            found[tagged.run, tagged.bid] = row.array if row.task is not None else row.id
    for errand in books.errands.values():
        for bid in errand.bids:
            _found(books, errand, bid, found.get((errand.run.name, bid.number)))


def _cancel_doomed(books: Tracker, rows: list[Row]) -> None:
    """Those that are still there, and still what they were."""
    alive = {number: row.comment for row in rows if not row.is_final for number in (row.id, row.array)}
    ids = sorted(id for id, tag in books.doomed.items() if alive.get(id) == tag)
    if not ids or not books.slurm.cancel(ids).unsure:
        books.doomed.clear()


def _is_unwanted(books: Tracker, tagged: Tagged, row: Row) -> bool:
    """Whether this is a copy of what has begun elsewhere, or nobody's. It would find no ticket anyway."""
    unit = books.units.get(tagged.unit)
    if unit is None:
        return books.clock() - books.born > SETTLED_S
    return unit.claim is not None and unit.claim.id != row.id


def _found(books: Tracker, errand: SlurmSubmission, bid: Candidate, id: str | None) -> None:
    """Slurm has this submission under that number, or (None) does not know it."""
    if id is not None and bid.stage in (Stage.UNSURE, Stage.SENT):
        bid.stage, bid.id, bid.missing = Stage.SENT, id, 0
    elif bid.stage is Stage.UNSURE:
        bid.stage = Stage.NEW  # Slurm answers, and has never heard of it
    elif bid.stage is Stage.SENT and books.clock() - bid.sent_at > MISSING_S:
        bid.missing += 1
        if bid.missing >= MISSING and _is_untouched(books, errand):
            log.warning("Slurm lost %s: it is submitted again", errand.run.name)
            bid.stage, bid.missing = Stage.NEW, 0


def _is_untouched(books: Tracker, errand: SlurmSubmission) -> bool:
    """Whether something of it is left that has neither begun nor been taken back."""
    units = errand.units.values()
    return any(unit.claim is None and os.path.exists(books.desk.path(unit.name, "ticket")) for unit in units)


def _judge(books: Tracker, unit: TrackedRun, rows: list[tuple[Tagged, Row]]) -> None:
    """What the queue says about one run."""
    if unit.claim is None:
        alive = [row for _, row in rows if not row.is_final]
        if alive:
            best = min(alive, key=lambda row: row.state == "PENDING")
            if best.state == "PENDING":
                books.sight(unit, reason=in_words(best.reason), id=best.id)
        elif len({tagged.bid for tagged, _ in rows}) == len(unit.errand.bids):
            _over(books, unit, rows[-1][1])
        return
    row = next((row for _, row in rows if row.id == unit.claim.id), None)
    if row is None:
        _absent(books, unit)
    elif row.is_final:
        _over(books, unit, row)
    else:
        unit.absent_since = unit.final_since = 0.0
        books.sight(unit, running=True, id=unit.claim.id, nodes=row.nodes)


def _over(books: Tracker, unit: TrackedRun, row: Row) -> None:
    """Slurm says that it is over."""
    if _again(books, unit, row):
        return
    now = books.clock()
    unit.final_since = unit.final_since or now
    standing = Standing(
        state=row.state,
        began=unit.claim is not None,
        record=books.desk.read_exit(unit.name),
        waited=now - unit.final_since >= RECORD_S,
        log=unit.errand.launch.log,
    )
    end = end_of(standing, lambda: books.slurm.verdict(row.id, row.comment))
    if end is None:
        books.within(LOOK_S)
    elif unit.claim is None and not books.withdraw(unit):
        books.fresh = True  # it has begun after all; its own word comes with the next look
    else:
        books.end(unit, end)


def _again(books: Tracker, unit: TrackedRun, row: Row) -> bool:
    """Submit it anew, if a controller that has just come back has ended what never began.

    It gives numbers out a second time, and nodes that still know the first job refuse the second.
    """
    errand = unit.errand
    fine = unit.claim is None and books.is_shaky and not errand.is_array and not unit.stopped
    if not fine or errand.again >= AGAIN or not _is_untouched(books, errand):
        return False
    log.warning("Slurm ended %s (%s) before it began: it is submitted again", unit.name, row.state)
    errand.again += 1
    for bid in errand.bids:
        books.void.add(bid.id)
        bid.stage, bid.missing = Stage.NEW, 0
    books.void.add(row.id)
    return True


def _absent(books: Tracker, unit: TrackedRun) -> None:
    """It has begun, and Slurm's queue does not know it any more."""
    now = books.clock()
    assert unit.claim is not None
    unit.absent_since = unit.absent_since or now
    record = books.desk.read_exit(unit.name)
    # Its number may be another job's by now, also one of ours.
    verdict = books.slurm.verdict(unit.claim.id, unit.errand.tag(books.daemon, unit.claim.bid))
    if record is not None and record.code is not None:
        books.end(unit, End(record.code, None, ""))
    elif verdict is not None and verdict.state in slurm_cli.FINAL:
        standing = Standing(verdict.state, True, record, True, unit.errand.launch.log)
        books.end(unit, end_of(standing, lambda: verdict) or End(None, None, "Lost"))
    elif now - unit.absent_since > books.cluster.lost_after_secs:
        books.end(unit, End(None, None, "Lost"))
    else:
        books.sight(unit, running=True, id=unit.claim.id, reason=UNKNOWN)


# What Slurm decided, whatever code the job left with.
PROBLEMS = {
    "TIMEOUT": "TimeLimit",
    "DEADLINE": "TimeLimit",
    "CANCELLED": "CancelledThere",
    "REVOKED": "CancelledThere",
    "NODE_FAIL": "NodeFail",
    "BOOT_FAIL": "NodeFail",
    "PREEMPTED": "Preempted",
    "OUT_OF_MEMORY": "OutOfMemory: more than Slurm gave it; ask for more with --memory",
}
# Slurm's exit code of a job whose log could not be made.
NO_LOG = 53


class Standing(NamedTuple):
    """What is known of a run of which Slurm says that it is over."""

    state: str
    began: bool
    record: Exit | None
    # Whether the job's own word has been waited for long enough.
    waited: bool
    log: str


def end_of(standing: Standing, ask: Callable[[], Verdict | None]) -> End | None:
    """The end; None: not known yet. `ask`: what scontrol or sacct say, which costs a question."""
    state, record = standing.state, standing.record
    if state in PROBLEMS:
        return End(record.code if record else None, None, PROBLEMS[state])
    if record is not None and record.code is not None:
        return End(record.code, None, "")
    if record is not None:  # Slurm began it a second time
        return End(None, None, "Preempted")
    if not standing.waited:
        return None
    verdict = ask()
    if verdict is None:
        return None
    if verdict.signal == NO_LOG and not standing.began:
        return End(None, None, f"StartFailed: no log at {standing.log}")
    if not standing.began:
        return End(None, None, f"StartFailed: Slurm says {verdict.state} before it began")
    if verdict.signal:
        return End(None, verdict.signal, "")
    return End(verdict.code, None, "")
