"""The clerk cancels: takes back by its ticket what has not begun; asks others to stop, then makes them."""

from __future__ import annotations

from gflow.core.lifecycle.finish import RECALLED
from gflow.targets.port import End, Run
from gflow.targets.slurm.tracker import LOOK_S, SlurmSubmission, Tracker

# What does not end is told so again, after so many seconds.
AGAIN_S = 30.0


def stop(books: Tracker, run: Run, *, now: bool) -> None:
    """Take it back if it has not begun; else ask it to stop, and later make it."""
    errand = books.errands.get(run) or _errand_of(books, run)
    if errand is None:
        return
    units = list(errand.units.values()) if errand.run == run else [books.units[run.name]]
    begun = [unit for unit in units if not books.withdraw(unit)]
    for unit in begun:
        books.desk.put(unit.name, "stop")
        unit.stopped = True
    if errand.run == run and errand.is_array:
        errand.refusal = errand.refusal or RECALLED
        books.doom(errand)
        books.settle_array(errand)
    elif not begun:
        books.doom(errand, run.name)
        books.end(units[0], End(None, None, RECALLED))
    if begun:
        grace_s = 0.0 if now else float(errand.launch.job.spec.grace_s)
        errand.kill_at = books.clock() + grace_s
        ids = [unit.claim.id for unit in begun if unit.claim] or [bid.id for bid in errand.bids if bid.id]
        if not now and ids:
            books.slurm.cancel(ids, "TERM")
        books.within(LOOK_S)


def recall(books: Tracker, run: Run) -> None:
    """Take it back if it has not begun."""
    errand = books.errands.get(run)
    if errand is None:
        return
    if errand.is_array:
        for unit in errand.units.values():
            books.withdraw(unit)
        errand.refusal = RECALLED
        books.doom(errand)
        books.settle_array(errand)
    elif books.withdraw(errand.units[run.name]):
        books.doom(errand)
        books.end(errand.units[run.name], End(None, None, RECALLED))


def signal(books: Tracker, run: Run, number: int) -> None:
    unit = books.units.get(run.name)
    if unit is not None and unit.claim is not None:
        books.slurm.cancel([unit.claim.id], str(number))


def stop_due(books: Tracker) -> None:
    """What was asked to stop and has not, is ended by Slurm; again and again, until it is over."""
    now = books.clock()
    for errand in books.errands.values():
        if errand.kill_at and now >= errand.kill_at and not books.is_down:
            ids = [unit.claim.id for unit in errand.units.values() if unit.stopped and unit.claim]
            if ids:
                books.slurm.cancel(ids)
            errand.kill_at = now + AGAIN_S


def _errand_of(books: Tracker, run: Run) -> SlurmSubmission | None:
    unit = books.units.get(run.name)
    return unit.errand if unit is not None else None
