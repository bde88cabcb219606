"""The queue simulation starts each job when the engine does, if jobs run as long as expected.

Both share the rules; the simulation repeats the loops over jobs (docs/adr/0010). Each world fills a queue,
simulates it, and then lets the engine run it to the end.
"""

from __future__ import annotations

import heapq
from random import Random

import pytest

from gflow.core.effects import Start
from gflow.core.engine import step
from gflow.core.events import Drain, Event, Exited, GpusSeen, Submit, Tick, Unclaim
from gflow.core.forecast import queue_simulation
from gflow.core.forecast.queue_simulation import Lengths, QueueSimulation, SimulatedReservation
from gflow.core.forecast.queue_snapshot import QueueSnapshot, waiting_jobs
from gflow.core.ids import JobKey
from gflow.core.model import Gpu, Moment, Spec
from gflow.core.policy import Policy
from gflow.core.scheduling import backfill
from gflow.core.state.start_reservations import StartReservation
from gflow.core.state.state import State
from gflow.testing import spec

SEEDS = range(60)
FIRST_S = 100_000.0
# All times are multiples of this, so that sums of them are exact.
TICK_S = 1 / 64
# Jobs end exactly when they are expected to.
EXACT = Lengths(by_limits=False, waiting=1.0, running=0.0)


class World:
    """An engine, and jobs that run exactly as long as is expected of them.

    No two jobs end at the same time: the engine is told of one end after the other.
    """

    def __init__(self, seed: int) -> None:
        self.dice = dice = Random(seed)
        self.size, self.with_gpus = dice.choice((4, 8)), dice.random() < 0.75
        self.state = State(
            cpus=1000 if self.with_gpus else self.size,
            memory_mib=1 << 20,
            policy=Policy(
                fair_share=False,
                patience=dice.choice((-1.0, 0.0, 0.5, 2.0, 8.0)),
                order=dice.choice(("shortest", "arrival")),
                backfill=dice.random() < 0.8,
                max_start_reservations=dice.choice((1, 2, 3)),
            ),
        )
        self.now = FIRST_S
        self.starts: dict[JobKey, float] = {}
        self._ends: list[tuple[float, JobKey]] = []
        # Work of which the length is known from an earlier run, in seconds.
        self._known: dict[str, int] = {}
        gpus = range(self.size if self.with_gpus else 0)
        self.apply(GpusSeen(at=self.at, gpus=tuple(_gpu(index) for index in gpus)))
        if self.with_gpus and dice.random() < 0.3:
            self.apply(Drain(at=self.at, uid=0, on=True, gpus=(0,)))
            self.size -= 1

    @property
    def at(self) -> Moment:
        return Moment(self.now, self.now)

    def apply(self, event: Event) -> None:
        for effect in step(self.state, event):
            if isinstance(effect, Start):
                self.starts[effect.key] = self.now
                heapq.heappush(self._ends, (self.now + self._length(effect.key), effect.key))

    def _length(self, key: JobKey) -> float:
        job = self.state.jobs[key]
        known = self._known.get(job.spec.name) or job.spec.time_limit_s
        return float(known or self.state.ready.expected_s(job))

    def submit(self, asked: Spec) -> None:
        uid = 1001 + ord(asked.name[-1]) % 2
        self.apply(Submit(at=self.at, uid=uid, user=f"user{uid}", specs=(asked,), outcomes={}))

    def fill(self) -> None:
        """Learn the lengths of some work, then submit more than fits."""
        count = self.dice.randint(10, 50)
        lengths = self.dice.sample(range(600, 20000), count)
        specs = [self._some_work(number, length) for number, length in enumerate(lengths)]
        for asked in specs:
            if asked.name in self._known:
                self.submit(asked)
                self.run_to_end()
        for asked in specs:
            self.advance(self.now + TICK_S * self.dice.randint(1, 8000))
            self.submit(asked)
        self.apply(Unclaim(at=self.at, keys=()))  # a full round: the simulation begins with one

    def _some_work(self, number: int, length: int) -> Spec:
        """A job with a limit, of known length, of unknown length (the first), or one of several alike."""
        # Letters: the runs of work whose names differ in numbers are one kind.
        name, size = f"work-{chr(ord('A') + number)}", self.dice.choice((1, 1, 2, 3, self.size))
        kind = self.dice.choice(("limit", "known", "alike")) if number else "unknown"
        if kind == "alike":
            name, size = "alike", self.size - 1
        if kind in ("known", "alike"):
            self._known.setdefault(name, length)
        return spec(
            name=name,
            time_limit_s=length if kind == "limit" else 0,
            priority=10 if kind == "alike" else self.dice.choice((10, 10, 20)),
            **({"gpus": size} if self.with_gpus else {"cpus": size}),
        )

    def advance(self, until: float) -> None:
        """Let time pass: jobs end, and reserved starts pass."""
        while True:
            reserved = self.state.start_reservations.next_start()
            end = self._ends[0][0] if self._ends else until
            due = min(end, until if reserved is None else reserved)
            if due >= until:
                break
            self.now = max(self.now, due)
            if due == end:
                _, key = heapq.heappop(self._ends)
                self.apply(Exited(at=self.at, key=key, attempt=1, code=0))
            else:
                self.apply(Tick(at=self.at))
        self.now = until

    def run_to_end(self) -> None:
        while self._ends:
            self.advance(self._ends[0][0] + TICK_S)


def _gpu(index: int) -> Gpu:
    return Gpu(index=index, uuid=f"GPU-{index}", model="A100", memory_mib=81559, simulated=True)


def check(seed: int) -> int:
    """Compare all starts of one world; how many there were."""
    world = World(seed)
    world.fill()
    snapshot = QueueSnapshot.of(world.state, world.now)
    waiting = waiting_jobs(snapshot, world.with_gpus)
    found = QueueSimulation(snapshot, EXACT, waiting, with_gpus=world.with_gpus).all()
    world.run_to_end()
    late = {key: world.starts.get(key) for key in found if world.starts.get(key) != pytest.approx(found[key])}
    assert not late, f"{ {key >> 20: (found[key], late[key]) for key in late} } (simulated, started)"
    return len(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_simulation_starts_each_job_when_the_engine_does(seed):
    check(seed)


def test_worlds_have_queues_to_compare():
    worlds = [World(seed) for seed in SEEDS]
    assert {world.with_gpus for world in worlds} == {True, False}
    assert sum(map(check, SEEDS)) > 500


# ---------------------------------------------------------------- a rule that differs is noticed


def other_patience(monkeypatch):
    monkeypatch.setattr(backfill, "patience_for", lambda patience, share, quiet: 0.5 * patience)


def never_quiet(monkeypatch):
    monkeypatch.setattr(backfill, "is_quiet", lambda state: False)


def no_caution(monkeypatch):
    monkeypatch.setattr(queue_simulation, "assumed_length", lambda caution, limit_s, estimated_s: limit_s)


def unlimited_backfill(monkeypatch):
    monkeypatch.setattr(StartReservation, "allows", lambda self, shape, gpu_ids, length: True)


def uncharged_reservation(monkeypatch):
    monkeypatch.setattr(SimulatedReservation, "take", lambda self, job, now: None)


def reservation_ignored(monkeypatch):
    monkeypatch.setattr(QueueSimulation, "_may_backfill", lambda self, job: True)


def gamble_with_others(monkeypatch):
    """A part of the estimate counts against reservations of other users, too."""
    monkeypatch.setattr(
        SimulatedReservation,
        "_length",
        lambda self, job: queue_simulation.assumed_length(self._caution, job.limit_s, job.estimated_s),
    )


def reserved_only_when_due(monkeypatch):
    original = backfill._reserve_for_oldest

    def reserve(*jobs, is_due):
        return original(*jobs, is_due=True) if is_due else []

    monkeypatch.setattr(backfill, "_reserve_for_oldest", reserve)


def kept_reservation(monkeypatch):
    """No second pass after a reserved job has started."""
    original = QueueSimulation._start
    monkeypatch.setattr(QueueSimulation, "_start", lambda self, job: original(self, job) and False)


MUTANTS = [
    other_patience, never_quiet, no_caution, unlimited_backfill, uncharged_reservation, reservation_ignored,
    gamble_with_others, reserved_only_when_due, kept_reservation,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_rule_that_differs_is_noticed(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"simulated, started"):
        for seed in range(400):
            check(seed)
