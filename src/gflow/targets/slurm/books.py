"""The clerk's books: what is out there, what the daemon is told of it, and when Slurm is asked next.

Submitting, asking and cancelling share them. All are called from the clerk's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from gflow.core.events import Sighting
from gflow.core.retrying import RECALLED
from gflow.targets.port import End, Ended, Run
from gflow.targets.slurm.commands import Slurm
from gflow.targets.slurm.desk import Desk
from gflow.targets.slurm.errands import Errand, Stage, Unit
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.words import in_words

log = logging.getLogger("gflow.slurm")
# How often the folder is looked at while anything is out there.
LOOK_S = 1.0
# A controller that has just come back does not know its nodes yet, and refuses what it will take in a moment.
SHAKY_S = 60.0


class Books:
    """Everything that the clerk remembers."""

    def __init__(
        self,
        cluster: Cluster,
        desk: Desk,
        slurm: Slurm,
        seen: Callable[[list[Sighting]], None],
        ended: Callable[[Ended], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster, self.desk, self.slurm, self.clock = cluster, desk, slurm, clock
        self._seen, self._ended = seen, ended
        self.daemon = desk.daemon_id()
        self.errands: dict[Run, Errand] = {}
        self.units: dict[str, Unit] = {}
        self.news: list[Sighting] = []
        # Slurm jobs that are to be cancelled, until that has worked: each number, and the tag it must have.
        # A controller that was killed gives numbers out again.
        self.doomed: dict[str, str] = {}
        # Those whose end means nothing.
        self.void: set[str] = set()
        self.poll_at = self.pause = 0.0
        self.born = clock()
        # Since when the controller does not answer; 0: it does.
        self._down_since = 0.0
        self._shaky_until = 0.0
        # The folder is to be read, whether it looks changed or not.
        self.fresh = True

    # ------------------------------------------------------------ the controller

    @property
    def is_down(self) -> bool:
        return self._down_since > 0

    @property
    def is_shaky(self) -> bool:
        """Whether the controller is down, or was a moment ago: then its refusals mean little."""
        return self.is_down or self.clock() < self._shaky_until

    def went_down(self, why: str) -> None:
        """The controller does not answer: everything waits, and is told so."""
        now = self.clock()
        if not self._down_since:
            log.warning("the Slurm controller does not answer: %s", why.strip())
            self._down_since = now
        self.pause = min(max(2.0, self.pause * 2), self.cluster.poll_most_secs)
        self.poll_at = now + self.pause
        for errand in self.errands.values():
            if any(bid.stage is not Stage.SENT for bid in errand.bids):
                self.sight_errand(errand, in_words("SlurmUnreachable"))

    def came_back(self) -> None:
        if self._down_since:
            log.warning("the Slurm controller answers again")
            self._down_since, self.pause = 0.0, 0.0
            self.void.clear()
            self._shaky_until = self.clock() + SHAKY_S

    def soon(self) -> None:
        """Something happened: ask at once, and then often."""
        self.poll_at, self.pause = 0.0, 0.0

    def within(self, seconds: float) -> None:
        """Ask again after so long at the latest."""
        self.poll_at = min(self.poll_at, self.clock() + seconds)

    # ------------------------------------------------------------ what is over

    def withdraw(self, unit: Unit) -> bool:
        """Whether it is certain that this never begins."""
        if unit.claim is not None or unit.has_exit:
            return False
        return self.desk.withdraw(unit.name)

    def doom(self, errand: Errand, task: str = "") -> None:
        """What Slurm has of it is not wanted any more."""
        number = task.partition(".")[0].partition("_")[2]
        suffix = f"_{number}" if number and errand.is_array else ""
        claimed = {unit.claim.id for unit in errand.units.values() if unit.claim}
        for bid in errand.bids:
            if bid.id and bid.id + suffix not in claimed:
                self.doomed[bid.id + suffix] = errand.tag(self.daemon, bid.number)

    def end(self, unit: Unit, end: End) -> None:
        """Nothing of this run lives any more, or can begin."""
        self.tell()
        errand = unit.errand
        if errand.run == unit.run:
            self.drop(errand)
        self.units.pop(unit.name, None)
        errand.units.pop(unit.name, None)
        self._ended(Ended(unit.run, end))
        if errand.is_array:
            self.settle_array(errand)
        self.soon()

    def settle_array(self, errand: Errand) -> None:
        """An array that is taken back is over when its last begun task is."""
        begun = [unit for unit in errand.units.values() if unit.claim is not None or unit.stopped]
        if errand.refusal == RECALLED and not begun and errand.run in self.errands:
            self.end_errand(errand)

    def end_errand(self, errand: Errand) -> None:
        """Nothing of this array can begin any more, for the reason that it carries."""
        self._ended(Ended(errand.run, End(None, None, errand.refusal)))
        self.drop(errand)

    def drop(self, errand: Errand) -> None:
        self.doom(errand)
        self.errands.pop(errand.run, None)
        for name in errand.units:
            self.units.pop(name, None)

    # ------------------------------------------------------------ telling

    def sight(
        self, unit: Unit, *, running: bool = False, reason: str = "", id: str = "", nodes: str = ""
    ) -> None:
        """What the daemon is to know of a run; it hears of changes alone."""
        said = (running, reason, id, nodes)
        if unit.told == said:
            return
        unit.told = said
        if not running and unit.errand.is_array:
            self.sight_errand(unit.errand, reason, id.partition("_")[0])
            return
        run = unit.run
        self.news.append(
            Sighting(key=run.key, attempt=run.attempt, running=running, reason=reason, id=id, nodes=nodes)
        )

    def sight_errand(self, errand: Errand, reason: str, id: str = "") -> None:
        run = errand.run
        if errand.told != (reason, id):
            errand.told = (reason, id)
            self.news.append(Sighting(key=run.key, attempt=run.attempt, reason=reason, id=id))

    def tell(self) -> None:
        if self.news:
            news, self.news = self.news, []
            self._seen(news)
