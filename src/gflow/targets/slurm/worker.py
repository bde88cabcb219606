"""The clerk: submits, asks, cancels. It has a thread of its own, as a question to Slurm may take seconds.

Exactly once rests on two things. A submission has a tag of ours, and one of which nobody knows whether it
worked is looked for by that tag before it is tried again. And a job runs only if it can take its ticket
(`desk`): a copy that should not be there, whoever made it, finds none.
"""

from __future__ import annotations

from gflow.targets.port import Launch, Run
from gflow.targets.slurm import cancel, poll, submit
from gflow.targets.slurm.shared_folder import Found
from gflow.targets.slurm.tracker import LOOK_S, SlurmSubmission, Stage, Tracker

UNTOUCHED = Found(ticket=True, asked=False, claim=None, withdrawn=False, exit=False)


class SlurmWorker:
    """All methods are called from one thread, and may take seconds."""

    def __init__(self, books: Tracker) -> None:
        self._books = books
        # What was found in the folder, for all that are started before the next turn: it may hold thousands.
        self._known: dict[str, Found] | None = None

    @property
    def is_down(self) -> bool:
        return self._books.is_down

    @property
    def is_shaky(self) -> bool:
        return self._books.is_shaky

    # ------------------------------------------------------------ what the daemon says

    def start(self, launch: Launch) -> None:
        """Submit it, unless it was; then its story goes on where it was left."""
        books, desk = self._books, self._books.desk
        if self._known is None:
            self._known = desk.look()
        known = self._known
        found = known.get(launch.run.name)
        errand = SlurmSubmission(launch, asked=found is not None and found.asked)
        books.errands[launch.run] = errand
        books.units |= errand.units
        untouched = [name for name in errand.units if name not in known or known[name] == UNTOUCHED]
        if errand.bids[0].stage is Stage.NEW:
            desk.issue(untouched)
            if launch.script is not None:
                desk.put(launch.run.name, "script", launch.script)
        books.fresh = True
        if all(name in known and (known[name].claim or known[name].withdrawn) for name in errand.units):
            for bid in errand.bids:  # nothing of it is left to submit
                bid.stage = Stage.SENT

    def stop(self, run: Run, *, now: bool) -> None:
        cancel.stop(self._books, run, now=now)

    def recall(self, run: Run) -> None:
        cancel.recall(self._books, run)

    def signal(self, run: Run, number: int) -> None:
        cancel.signal(self._books, run, number)

    def forget(self, run: Run) -> None:
        """Its end is durable elsewhere. Another copy of it that comes to life finds no ticket."""
        books = self._books
        self._known = None
        errand = books.errands.get(run)
        unit = books.units.pop(run.name, None)
        names = [run.name]
        if errand is not None:
            names += errand.units
            books.drop(errand)
        elif unit is not None and unit.errand.run in books.errands:
            unit.errand.units.pop(run.name, None)
        for name in names:
            books.desk.clear(name)

    # ------------------------------------------------------------ a turn

    def turn(self) -> float | None:
        """Do what is due. When to come again, in seconds; None: not before somebody asks for something."""
        books = self._books
        self._known = None
        if not books.errands and not books.doomed:
            return None
        if books.fresh or books.desk.has_news():
            books.fresh = False
            poll.read_desk(books)
        waiting = any(
            bid.stage in (Stage.NEW, Stage.UNSURE) for e in books.errands.values() for bid in e.bids
        )
        if books.clock() >= books.poll_at:
            poll.poll(books)
        if waiting and not books.is_down:
            submit.submit_all(books)
        cancel.stop_due(books)
        books.tell()
        return min(LOOK_S, max(0.0, books.poll_at - books.clock()))
