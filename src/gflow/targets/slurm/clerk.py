"""The clerk: submits, asks, cancels. It has a thread of its own, as a question to Slurm may take seconds.

Exactly once rests on two things. A submission has a tag of ours, and one of which nobody knows whether it
worked is looked for by that tag before it is tried again. And a job runs only if it can take its ticket
(`desk`): a copy that should not be there, whoever made it, finds none.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from gflow.core.events import Sighting
from gflow.core.retrying import RECALLED
from gflow.targets.port import End, Ended, Launch, Run
from gflow.targets.slurm import parsing
from gflow.targets.slurm.commands import Slurm
from gflow.targets.slurm.desk import Desk, Found
from gflow.targets.slurm.errands import (
    MARK,
    Bid,
    Errand,
    Stage,
    Tagged,
    Unit,
    environment_of,
    read_tag,
    text_of,
)
from gflow.targets.slurm.judging import Standing, end_of
from gflow.targets.slurm.parsing import Row
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.words import in_words

log = logging.getLogger("gflow.slurm")
# How often the folder is looked at while anything is out there.
LOOK_S = 1.0
# What Slurm does not show is submitted again after so many answers without it, and so many seconds.
MISSING = 3
MISSING_S = 5.0
# A job's own word about its end may come a little after Slurm's: so long it is waited for.
RECORD_S = 3.0
# A controller that has just come back does not know its nodes yet, and refuses what it will take in a moment.
SHAKY_S = 60.0
AGAIN_S = 3.0


class Clerk:
    """All methods are called from one thread, and may take seconds."""

    def __init__(
        self,
        cluster: Cluster,
        desk: Desk,
        slurm: Slurm,
        seen: Callable[[list[Sighting]], None],
        ended: Callable[[Ended], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._desk, self._slurm = cluster, desk, slurm
        self._seen, self._ended, self._clock = seen, ended, clock
        self._daemon = desk.daemon_id()
        self._errands: dict[Run, Errand] = {}
        self._units: dict[str, Unit] = {}
        self._news: list[Sighting] = []
        # Slurm jobs that are to be cancelled, until that has worked.
        self._doomed: set[str] = set()
        self._poll_at = self._pause = 0.0
        # Since when the controller does not answer; 0: it does.
        self._down_since = 0.0
        self._shaky_until = 0.0
        self._fresh = True

    @property
    def is_down(self) -> bool:
        return self._down_since > 0

    @property
    def is_shaky(self) -> bool:
        """Whether the controller is down, or was a moment ago: then its refusals mean little."""
        return self.is_down or self._clock() < self._shaky_until

    # ------------------------------------------------------------ what the daemon says

    def start(self, launch: Launch) -> None:
        """Submit it, unless it was; then its story goes on where it was left."""
        known = self._desk.look()
        found = known.get(launch.run.name)
        errand = Errand(launch, asked=found is not None and found.asked)
        self._errands[launch.run] = errand
        for name, unit in errand.units.items():
            self._units[name] = unit
        untouched = [name for name in errand.units if name not in known or known[name] == UNTOUCHED]
        if errand.bids[0].stage is Stage.NEW:
            self._desk.issue(untouched)
            if launch.script is not None:
                self._desk.put(launch.run.name, "script", launch.script)
        self._fresh = True
        if all(name in known and (known[name].claim or known[name].withdrawn) for name in errand.units):
            for bid in errand.bids:  # nothing of it is left to submit
                bid.stage = Stage.SENT

    def stop(self, run: Run, *, now: bool) -> None:
        """Take it back if it has not begun; else ask it to stop, and later make it."""
        errand = self._errands.get(run) or self._errand_of(run)
        if errand is None:
            return
        units = list(errand.units.values()) if errand.run == run else [self._units[run.name]]
        begun = [unit for unit in units if not self._withdraw(unit)]
        for unit in begun:
            self._desk.put(unit.name, "stop")
            unit.stopped = True
        if errand.run == run and errand.is_array:
            errand.refusal = errand.refusal or RECALLED
            self._doom(errand)
            self._settle_array(errand)
        elif not begun:
            self._doom(errand, run.name)
            self._end(units[0], End(None, None, RECALLED))
        if begun:
            grace_s = 0.0 if now else float(errand.launch.job.spec.grace_s)
            errand.kill_at = self._clock() + grace_s
            ids = [unit.claim.id for unit in begun if unit.claim] or [bid.id for bid in errand.bids if bid.id]
            if not now and ids:
                self._slurm.cancel(ids, "TERM")
            self._poll_at = min(self._poll_at, self._clock() + LOOK_S)

    def recall(self, run: Run) -> None:
        """Take it back if it has not begun."""
        errand = self._errands.get(run)
        if errand is None:
            return
        if errand.is_array:
            for unit in errand.units.values():
                self._withdraw(unit)
            errand.refusal = RECALLED
            self._doom(errand)
            self._settle_array(errand)
        elif self._withdraw(errand.units[run.name]):
            self._doom(errand)
            self._end(errand.units[run.name], End(None, None, RECALLED))

    def signal(self, run: Run, number: int) -> None:
        unit = self._units.get(run.name)
        if unit is not None and unit.claim is not None:
            self._slurm.cancel([unit.claim.id], str(number))

    def forget(self, run: Run) -> None:
        """Its end is durable elsewhere. Another copy of it that comes to life finds no ticket."""
        errand = self._errands.pop(run, None)
        unit = self._units.pop(run.name, None)
        names = [run.name]
        if errand is not None:
            self._doom(errand)
            names += errand.units
            for name in errand.units:
                self._units.pop(name, None)
        elif unit is not None and unit.errand.run in self._errands:
            unit.errand.units.pop(run.name, None)
        for name in names:
            self._desk.clear(name)

    def _errand_of(self, run: Run) -> Errand | None:
        unit = self._units.get(run.name)
        return unit.errand if unit is not None else None

    def _withdraw(self, unit: Unit) -> bool:
        """Whether it is certain that this never begins."""
        if unit.claim is not None or unit.has_exit:
            return False
        return self._desk.withdraw(unit.name)

    def _doom(self, errand: Errand, task: str = "") -> None:
        """What Slurm has of it is not wanted any more."""
        number = task.partition(".")[0].partition("_")[2]
        suffix = f"_{number}" if number and errand.is_array else ""
        claimed = {unit.claim.id for unit in errand.units.values() if unit.claim}
        self._doomed |= {bid.id + suffix for bid in errand.bids if bid.id} - claimed

    # ------------------------------------------------------------ a turn

    def turn(self) -> float | None:
        """Do what is due. When to come again, in seconds; None: not before somebody asks for something."""
        if not self._errands and not self._doomed:
            return None
        if self._fresh or self._desk.has_news():
            self._fresh = False
            self._read_desk()
        now = self._clock()
        waiting = any(
            bid.stage in (Stage.NEW, Stage.UNSURE) for e in self._errands.values() for bid in e.bids
        )
        if now >= self._poll_at:
            self._poll()
        if waiting and not self._down_since:
            self._submit_all()
        self._stop_due()
        self._tell()
        return min(LOOK_S, max(0.0, self._poll_at - self._clock()))

    def _read_desk(self) -> None:
        for name, found in self._desk.look().items():
            unit = self._units.get(name)
            if unit is not None:
                self._read(unit, found)

    def _read(self, unit: Unit, found: Found) -> None:
        if found.withdrawn and not unit.errand.is_array:
            self._end(unit, End(None, None, RECALLED))
            return
        if found.claim is not None and unit.claim is None:
            unit.claim = found.claim
            self._sight(unit, running=True, id=found.claim.id)
            for bid in unit.errand.bids:  # the race is over
                if bid.number != found.claim.bid and bid.id:
                    self._doomed.add(bid.id)
            self._soon()
        if found.exit and not unit.has_exit:
            unit.has_exit = True
            record = self._desk.read_exit(unit.name)
            if record is not None and record.code is not None and not record.told:
                self._end(unit, End(record.code, None, ""))
            else:  # it was told to stop: only Slurm knows why
                self._soon()

    def _soon(self) -> None:
        """Something happened: ask at once, and then often."""
        self._poll_at, self._pause = 0.0, 0.0

    # ------------------------------------------------------------ submitting

    def _submit_all(self) -> None:
        for errand in list(self._errands.values()):
            for bid in errand.bids:
                again = not bid.sent_at or self._clock() - bid.sent_at > AGAIN_S
                if bid.stage is Stage.NEW and again and not self._down_since:
                    self._submit(errand, bid)
            if errand.refusal and all(bid.stage is Stage.REFUSED for bid in errand.bids):
                self._fail(errand)

    def _submit(self, errand: Errand, bid: Bid) -> None:
        launch, spec = errand.launch, errand.launch.job.spec
        tag = errand.tag(self._daemon, bid)
        script = text_of(launch, bid, self._cluster, str(self._desk.folder), tag)
        if problem := _made_folders(launch):
            bid.stage, errand.refusal = Stage.REFUSED, f"StartFailed: {problem}"
            return
        self._desk.put(errand.run.name, "asked")
        bid.stage = Stage.UNSURE
        said = self._slurm.submit(script, environment_of(launch), spec.cwd, spec.umask)
        if said.ok:
            bid.stage, bid.id, bid.sent_at = Stage.SENT, said.text, self._clock()
            self._sight_errand(errand, "Submitted", bid.id)
            self._poll_at, self._pause = min(self._poll_at, self._clock() + LOOK_S), 0.0
        elif said.unsure:
            self._is_down(said.error)
        elif self.is_shaky:
            bid.stage, bid.sent_at = Stage.NEW, self._clock()
        else:
            bid.stage = Stage.REFUSED
            errand.refusal = f"StartFailed: Slurm: {parsing.complaint(said.error)}"
            log.warning("%s: %s", errand.run.name, errand.refusal)

    def _fail(self, errand: Errand) -> None:
        """Slurm refused it, so nothing of it ever runs."""
        for unit in list(errand.units.values()):
            if not self._withdraw(unit):
                return
        if errand.is_array:
            self._ended(Ended(errand.run, End(None, None, errand.refusal)))
            self._drop(errand)
        else:
            self._end(errand.units[errand.run.name], End(None, None, errand.refusal))

    def _is_down(self, why: str) -> None:
        """The controller does not answer: everything waits, and is told so."""
        now = self._clock()
        if not self._down_since:
            log.warning("the Slurm controller does not answer: %s", why.strip())
            self._down_since = now
        self._pause = min(max(2.0, self._pause * 2), self._cluster.poll_most_secs)
        self._poll_at = now + self._pause
        for errand in self._errands.values():
            if any(bid.stage is not Stage.SENT for bid in errand.bids):
                self._sight_errand(errand, in_words("SlurmUnreachable"))

    # ------------------------------------------------------------ asking

    def _poll(self) -> None:
        """One question about all of them."""
        said = self._slurm.queue()
        if not said.ok:
            self._is_down(said.error)
            return
        if self._down_since:
            log.warning("the Slurm controller answers again")
            self._down_since, self._pause = 0.0, 0.0
            self._shaky_until = self._clock() + SHAKY_S
        self._read_desk()  # after the question: who has ended by the answer has written so before, mostly
        rows: dict[str, list[tuple[Tagged, Row]]] = {}
        for row in parsing.parse_queue(said.text):
            tagged = read_tag(row.comment, self._daemon, row.task)
            if tagged is not None:
                rows.setdefault(tagged.unit, []).append((tagged, row))
        self._find_bids(rows)
        if self._doomed and not self._slurm.cancel(sorted(self._doomed)).unsure:
            self._doomed.clear()
        for unit in list(self._units.values()):
            self._judge(unit, rows.get(unit.name, []))
        # What is being stopped ends soon, and may leave no word of its own.
        changed = bool(self._news) or any(unit.stopped for unit in self._units.values())
        least, most = self._cluster.poll_secs, self._cluster.poll_most_secs
        self._pause = least if changed else min(most, max(least, self._pause * 2))
        self._poll_at = self._clock() + self._pause

    def _find_bids(self, rows: dict[str, list[tuple[Tagged, Row]]]) -> None:
        """Which submissions Slurm has; those that it has not are sent again, those that are nobody's go."""
        found: dict[tuple[str, int], str] = {}
        for tagged, row in [one for of_unit in rows.values() for one in of_unit]:
            if tagged.unit not in self._units and row.state == "PENDING":
                self._doomed.add(row.id)
            if not row.is_final or (tagged.run, tagged.bid) not in found:
                found[tagged.run, tagged.bid] = row.array if row.task is not None else row.id
        for errand in self._errands.values():
            for bid in errand.bids:
                self._found(errand, bid, found.get((errand.run.name, bid.number)))

    def _found(self, errand: Errand, bid: Bid, id: str | None) -> None:
        """Slurm has this submission under that number, or (None) does not know it."""
        if id is not None and bid.stage in (Stage.UNSURE, Stage.SENT):
            bid.stage, bid.id, bid.missing = Stage.SENT, id, 0
        elif bid.stage is Stage.UNSURE:
            bid.stage = Stage.NEW  # Slurm answers, and has never heard of it
        elif bid.stage is Stage.SENT and self._clock() - bid.sent_at > MISSING_S:
            bid.missing += 1
            if bid.missing >= MISSING and self._is_untouched(errand):
                log.warning("Slurm lost %s: it is submitted again", errand.run.name)
                bid.stage, bid.missing = Stage.NEW, 0

    def _is_untouched(self, errand: Errand) -> bool:
        """Whether something of it is left that has neither begun nor been taken back."""
        units = errand.units.values()
        return any(
            unit.claim is None and os.path.exists(self._desk.path(unit.name, "ticket")) for unit in units
        )

    def _judge(self, unit: Unit, rows: list[tuple[Tagged, Row]]) -> None:
        """What the queue says about one run."""
        if unit.claim is None:
            alive = [row for _, row in rows if not row.is_final]
            if alive:
                best = min(alive, key=lambda row: row.state == "PENDING")
                if best.state == "PENDING":
                    self._sight(unit, reason=in_words(best.reason), id=best.id)
            elif len({tagged.bid for tagged, _ in rows}) == len(unit.errand.bids):
                self._over(unit, rows[-1][1])
            return
        row = next((row for _, row in rows if row.id == unit.claim.id), None)
        if row is None:
            self._absent(unit)
        elif row.is_final:
            self._over(unit, row)
        else:
            unit.absent_since = unit.final_since = 0.0
            self._sight(unit, running=True, id=unit.claim.id, nodes=row.nodes)

    def _over(self, unit: Unit, row: Row) -> None:
        """Slurm says that it is over."""
        now = self._clock()
        unit.final_since = unit.final_since or now
        standing = Standing(
            state=row.state,
            began=unit.claim is not None,
            record=self._desk.read_exit(unit.name),
            waited=now - unit.final_since >= RECORD_S,
            log=unit.errand.launch.log,
        )
        end = end_of(standing, lambda: self._slurm.verdict(row.id, row.comment))
        if end is None:
            self._poll_at = min(self._poll_at, now + LOOK_S)
        elif unit.claim is None and not self._withdraw(unit):
            self._fresh = True  # it has begun after all; its own word comes with the next look
        else:
            self._end(unit, end)

    def _absent(self, unit: Unit) -> None:
        """It has begun, and Slurm's queue does not know it any more."""
        now = self._clock()
        assert unit.claim is not None
        unit.absent_since = unit.absent_since or now
        record = self._desk.read_exit(unit.name)
        tag = f"{MARK}{self._daemon}:"
        verdict = self._slurm.verdict(unit.claim.id, tag)
        if record is not None and record.code is not None:
            self._end(unit, End(record.code, None, ""))
        elif verdict is not None and verdict.state in parsing.FINAL:
            standing = Standing(verdict.state, True, record, True, unit.errand.launch.log)
            self._end(unit, end_of(standing, lambda: verdict) or End(None, None, "Lost"))
        elif now - unit.absent_since > self._cluster.lost_after_secs:
            self._end(unit, End(None, None, "Lost"))
        else:
            self._sight(unit, running=True, id=unit.claim.id, reason=UNKNOWN)

    # ------------------------------------------------------------ stopping

    def _stop_due(self) -> None:
        """What was asked to stop and has not, is ended by Slurm; again and again, until it is over."""
        now = self._clock()
        for errand in self._errands.values():
            if errand.kill_at and now >= errand.kill_at and not self._down_since:
                ids = [unit.claim.id for unit in errand.units.values() if unit.stopped and unit.claim]
                if ids:
                    self._slurm.cancel(ids)
                errand.kill_at = now + 30.0

    # ------------------------------------------------------------ telling

    def _sight(
        self, unit: Unit, *, running: bool = False, reason: str = "", id: str = "", nodes: str = ""
    ) -> None:
        said = (running, reason, id, nodes)
        if unit.told == said:
            return
        unit.told = said
        if not running and unit.errand.is_array:
            self._sight_errand(unit.errand, reason, id.partition("_")[0])
            return
        run = unit.run
        self._news.append(
            Sighting(key=run.key, attempt=run.attempt, running=running, reason=reason, id=id, nodes=nodes)
        )

    def _sight_errand(self, errand: Errand, reason: str, id: str = "") -> None:
        run = errand.run
        if errand.told != (reason, id):
            errand.told = (reason, id)
            self._news.append(Sighting(key=run.key, attempt=run.attempt, reason=reason, id=id))

    def _tell(self) -> None:
        if self._news:
            news, self._news = self._news, []
            self._seen(news)

    def _end(self, unit: Unit, end: End) -> None:
        """Nothing of this run lives any more, or can begin."""
        self._tell()
        errand = unit.errand
        if errand.run == unit.run:
            self._drop(errand)
        self._units.pop(unit.name, None)
        errand.units.pop(unit.name, None)
        self._ended(Ended(unit.run, end))
        if errand.is_array:
            self._settle_array(errand)
        self._soon()

    def _settle_array(self, errand: Errand) -> None:
        """An array that is taken back is over when its last begun task is."""
        begun = [unit for unit in errand.units.values() if unit.claim is not None or unit.stopped]
        if errand.refusal == RECALLED and not begun and errand.run in self._errands:
            self._ended(Ended(errand.run, End(None, None, RECALLED)))
            self._drop(errand)

    def _drop(self, errand: Errand) -> None:
        self._doom(errand)
        self._errands.pop(errand.run, None)
        for name in errand.units:
            self._units.pop(name, None)


UNTOUCHED = Found(ticket=True, asked=False, claim=None, withdrawn=False, exit=False)
UNKNOWN = "Unknown: Slurm does not know this job any more, and it has not said how it ended"


def _made_folders(launch: Launch) -> str:
    """Make the folders of its logs. What cannot be made is a problem that Slurm would not name."""
    for path in {launch.log, launch.error_log}:
        folder = os.path.dirname(path)
        try:
            if "%" not in folder.replace("%%", ""):
                os.makedirs(folder.replace("%%", "%"), exist_ok=True)
        except OSError as error:
            return f"no log at {path}: {error.strerror}"
    return ""
