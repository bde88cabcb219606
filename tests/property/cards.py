"""A world whose GPUs are cards seen through a driver: from what the driver shows to the starts of jobs.

The cards, the processes on them and their faults are made of dice. What a look finds goes through the
census to the engine, as in the daemon. `CardWorld` knows the truth and judges every start by plain rules.
"""

from __future__ import annotations

from gflow.core.effects import Effect, Start
from gflow.core.events import Drain, Event, Exited, LeasesSeen, Restrict
from gflow.core.ids import JobKey
from gflow.core.policy import Policy
from gflow.daemon.monitors.gpu_monitor import numbering_of, seen_of
from gflow.gpu.census import Census
from gflow.gpu.owners import Owner
from gflow.gpu.port import Card, Look, Process, Sample, Vitals
from gflow.gpu.settings import GpuSettings
from gflow.targets.local.target import Run
from gflow.testing import spec, submit
from tests.property import operations
from tests.property.dice import Dice, Rolled
from tests.property.world import World

SMALL_MIB = 300
RULES = GpuSettings(unmanaged_memory_mb=SMALL_MIB, drain_after_secs=0)
EVE, UNKNOWN = "eve", "unknown"
SLICED = "GPU-C"


class Truth:
    """A card as it really is."""

    def __init__(self, uuid: str, parent: str = "") -> None:
        self.uuid = uuid
        self.parent = parent
        self.present = True
        self.problem = ""
        self.hot = False
        self.ecc = 0
        self.faulty = False
        # Pid -> MiB.
        self.processes: dict[int, int] = {}


class Driver:
    """All cards and processes; an `Owners` that tells whose they are."""

    def __init__(self) -> None:
        self.cards = {uuid: Truth(uuid) for uuid in ("GPU-A", "GPU-B", SLICED, "GPU-D")}
        self.slices = {f"MIG-{n}": Truth(f"MIG-{n}", SLICED) for n in range(2)}
        self.is_sliced = False
        self.trouble = ""
        self.xids: list[tuple[str, int]] = []
        # Pid -> the run, or who else.
        self.owners: dict[int, str] = {}
        self.next_pid = 1000

    def all(self) -> list[Truth]:
        return [*self.cards.values(), *self.slices.values()]

    def visible(self) -> list[Truth]:
        wholes = [card for card in self.cards.values() if card.present]
        if not self.is_sliced:
            return wholes
        slices = list(self.slices.values()) if self.cards[SLICED].present else []
        return [card for card in wholes if card.uuid != SLICED] + slices

    def look(self) -> Look:
        if self.trouble:
            return Look(trouble=self.trouble)
        order = [card.uuid for card in self.cards.values() if card.present]
        cards = tuple(self._card(card, order) for card in self.visible())
        xids, self.xids = tuple(self.xids), []
        return Look(cards, xids=xids)

    def _card(self, card: Truth, order: list[str]) -> Card:
        return Card(
            uuid=card.uuid,
            number=-1 if card.parent else order.index(card.uuid),
            model="NVIDIA A100-SXM4-80GB",
            memory_mib=10240 if card.parent else 81559,
            parent=card.parent,
            problem=card.problem,
            sample=Sample(temperature=95 if card.hot else 40),
            vitals=Vitals(ecc_errors=card.ecc, slowdown_at=89),
            processes=tuple(Process(pid, mib) for pid, mib in card.processes.items()),
        )

    def run(self, card: Truth, owner: str, mib: int) -> None:
        self.next_pid += 1
        self.owners[self.next_pid] = owner
        card.processes[self.next_pid] = mib

    def end(self, pids: set[int]) -> None:
        for card in self.all():
            card.processes = {pid: mib for pid, mib in card.processes.items() if pid not in pids}

    # ------------------------------------------------------------ as `Owners`

    def of(self, pid: int) -> Owner:
        owner = self.owners[pid]
        if owner == EVE:
            return Owner(user="eve", command="python", started=pid)
        return Owner() if owner == UNKNOWN else Owner(run=owner)

    def keep(self, pids: object) -> None: ...

    def started(self, pid: int) -> int | None:
        return pid if pid in self.owners else None


class CardWorld(World):
    """A world in which every start is held against the truth of the last look."""

    def __init__(self, *, strategy: str = "sequential") -> None:
        super().__init__(policy=Policy(strategy=strategy))
        self.driver = Driver()
        self.census = self._new_census()
        # Cards that no job may get, as of the last look, and why; what stood there twice in a row.
        self.forbidden: dict[str, str] = {}
        self.before: set[tuple[str, int]] = set()
        # Which cards each run was given.
        self.given: dict[JobKey, tuple[str, ...]] = {}
        self.looks = self.starts = 0
        self.look()

    def _new_census(self) -> Census:
        numbering = numbering_of(self.state)
        return Census(RULES, self.driver, numbering, self.state.machine.faults)  # type: ignore[arg-type]

    def look(self) -> None:
        """A look at the driver, and its report to the engine."""
        self.looks += 1
        holders = {
            index: tuple(Run(key, self.state.jobs[key].attempt).name for key in keys)
            for index, keys in self.state.machine.holders.items()
        }
        look = self.driver.look()
        report = self.census.take(look, holders, self.clock.boot)
        numbers = {gpu.index: gpu.uuid for gpu in report.gpus}
        self._judge({uuid: holders.get(index, ()) for index, uuid in numbers.items()})
        self.apply(seen_of(report, self.clock.now()))

    def _judge(self, runs: dict[str, tuple[str, ...]]) -> None:
        """The truth at this look, by rules of our own."""
        shown = {card.uuid: card for card in self.driver.visible()} if not self.driver.trouble else {}
        seen = {(card.uuid, pid) for card in shown.values() for pid in card.processes}
        self.forbidden = dict.fromkeys(self._everywhere() - shown.keys(), "it was not to be seen")
        for uuid, card in shown.items():
            why = "lost" if card.problem else "broken" if card.faulty else "hot" if card.hot else ""
            for pid, mib in card.processes.items():
                owner, stays = self.driver.owners[pid], (uuid, pid) in self.before
                stray = owner not in (EVE, UNKNOWN) and owner not in runs.get(uuid, ()) and stays
                unknown = owner == UNKNOWN and stays and not runs.get(uuid)
                if mib > SMALL_MIB and (owner == EVE or stray or unknown):
                    why = why or f"used by {owner}"
            if why:
                self.forbidden[uuid] = why
        # A card that was lost for a moment is judged from the start.
        self.before = {(uuid, pid) for uuid, pid in seen if not shown[uuid].problem}

    def _everywhere(self) -> set[str]:
        return {card.uuid for card in self.driver.all()}

    def restart(self) -> None:
        super().restart()
        self.census = self._new_census()
        self.before = set()
        self.look()
        self.commit()

    def _taken(self, event: Event, effects: list[Effect], records: set[JobKey]) -> None:
        if isinstance(event, Exited) and event.key in self.given:
            ended = Run(event.key, event.attempt).name
            if event.attempt == self.reference.attempts.get(event.key):
                del self.given[event.key]
                self.driver.end({pid for pid, owner in self.driver.owners.items() if owner == ended})
        super()._taken(event, effects, records)
        for effect in effects:
            if isinstance(effect, Start):
                self._check_start(effect)

    def _check_start(self, effect: Start) -> None:
        job = self.state.jobs[effect.key]
        uuids = tuple(self.state.machine.gpus[index].uuid for index in job.gpu_ids)
        for uuid in uuids if self.looks else ():
            assert uuid not in self.forbidden, f"{job.label} starts on {uuid}: {self.forbidden[uuid]}"
            beside = [key for key, others in self.given.items() if _overlaps(uuid, others)]
            cut = any(uuid not in self.given[key] for key in beside)  # a card and a slice of it share nothing
            alone = cut or not job.spec.shared or any(not self.state.jobs[key].spec.shared for key in beside)
            assert not (beside and alone), f"{job.label} starts on {uuid}, which {beside} has"
        if uuids:
            self.given[effect.key] = uuids
            self.starts += 1


def _overlaps(uuid: str, given: tuple[str, ...]) -> bool:
    """Whether this card is one of those, or one of those is a slice of it, or it is a slice of one."""
    is_slice = uuid.startswith("MIG")
    cut = SLICED in given if is_slice else uuid == SLICED and any(other.startswith("MIG") for other in given)
    return cut or uuid in given


# ---------------------------------------------------------------- what can happen to cards


def look(world: CardWorld, dice: Dice) -> None:
    world.look()


def strangers(world: CardWorld, dice: Dice) -> None:
    """Processes come, of eve or of an unknown owner; or some go."""
    driver = world.driver
    theirs = {pid for pid, owner in driver.owners.items() if owner in (EVE, UNKNOWN)}
    if dice.chance(40):
        driver.end({pid for pid in theirs if dice.chance(60)})
    else:
        driver.run(dice.pick(driver.all()), dice.pick((EVE, EVE, UNKNOWN)), dice.pick((5000, 100, 301)))


def work(world: CardWorld, dice: Dice) -> None:
    """A job's process uses a card: its own, or by mistake another."""
    if world.given:
        key = dice.pick(sorted(world.given))
        cards = [card for card in world.driver.all() if card.uuid in world.given[key]]
        card = dice.pick(world.driver.all() if dice.chance(40) or not cards else cards)
        world.driver.run(card, Run(key, world.reference.attempts[key]).name, dice.pick((5000, 100)))


def lose(world: CardWorld, dice: Dice) -> None:
    """A card falls off the bus or comes back, and the driver renumbers; or the driver itself is gone."""
    driver = world.driver
    if dice.chance(20):
        driver.trouble = "" if driver.trouble else "NVML: reload"
        return
    card = dice.pick(list(driver.cards.values()))
    if dice.chance(50):
        card.present = not card.present
    else:
        card.problem = "" if card.problem else "GPU is lost"


def slice_(world: CardWorld, dice: Dice) -> None:
    """The MIG layout of a card changes."""
    world.driver.is_sliced = not world.driver.is_sliced


def sicken(world: CardWorld, dice: Dice) -> None:
    """A card gets hot or cools down, or breaks."""
    driver = world.driver
    card = dice.pick(driver.visible() or driver.all())
    if dice.chance(50):
        card.hot = not card.hot
    elif card in driver.visible() and not card.problem and not driver.trouble:
        world.look()  # so that the count of errors before is known
        broken = [card] if not card.parent else list(driver.slices.values())
        if card.parent or dice.chance(50):
            driver.xids.append((card.parent or card.uuid, 79))
        else:
            card.ecc += 1
        for each in broken:
            each.faulty = True
        world.look()


def resume(world: CardWorld, dice: Dice) -> None:
    """An operator resumes all cards."""
    world.census.resumed = frozenset(world.state.machine.gpus)
    known = {gpu.uuid for gpu in world.state.machine.gpus.values()}
    for card in world.driver.all():
        card.faulty = card.faulty and card.uuid not in known
    world.look()


def plain(world: CardWorld, dice: Dice) -> None:
    """A job that wants little and gets it soon."""
    sharing = {"shared": True, "gpu_memory_mib": 4096} if dice.chance(30) else {}
    if len(world.state.jobs) < operations.MOST_ACTIVE:
        world.apply(submit(world.clock, spec(gpus=dice.pick((1, 1, 2)), **sharing)))


def mend(world: CardWorld, dice: Dice) -> None:
    """All is well again, as far as people see to it."""
    driver, now = world.driver, world.clock.now()
    driver.trouble = ""
    for card in driver.all():
        card.present, card.problem, card.hot = True, "", False
    driver.end({pid for pid, owner in driver.owners.items() if owner in (EVE, UNKNOWN)})
    resume(world, dice)
    world.apply(LeasesSeen(at=now, foreign={}))
    world.apply(Drain(at=now, uid=0, on=False))
    world.apply(Drain(at=now, uid=0, on=False, gpus=tuple(world.state.machine.drained.gpus)))
    world.apply(Restrict(at=now, uid=0, allowed=None))


def restart(world: CardWorld, dice: Dice) -> None:
    world.restart()


OPERATIONS = (
    (12, look),
    (8, strangers),
    (5, work),
    (4, lose),
    (1, slice_),
    (3, sicken),
    (2, resume),
    (2, restart),
    (3, mend),
    (16, plain),
    (8, operations.submit),
    (30, operations.exit_),
    (4, operations.cancel),
    (3, operations.restrict),
    (3, operations.drain),
    (3, operations.see_leases),
    (2, operations.tick),
)
_WEIGHTED = [operation for weight, operation in OPERATIONS for _ in range(weight)]


def run_cards(seed: int, number: int, steps: int, strategy: str = "sequential") -> CardWorld:
    """One such world of at least `steps` events."""
    dice = Rolled(f"cards {seed}:{number}")
    world = CardWorld(strategy=strategy)
    try:
        while world.steps < steps:
            world.clock.advance(dice.pick(operations.SECONDS))
            dice.pick(_WEIGHTED)(world, dice)
            if not dice.chance(30):
                world.commit()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, world {number}: {error}\n  {world.event_log()}") from error
    return world
