"""Quotas, reservations and caps are never violated, whatever is submitted."""

from __future__ import annotations

import random

import pytest

from gflow.core.effects import Stop
from gflow.core.engine import step
from gflow.core.events import Exited, GpusSeen, Reserve, SetQuota, Submit, Tick, Unreserve, Update
from gflow.core.invariants import check
from gflow.core.lifecycle import update
from gflow.core.model import Gpu, Job, Moment
from gflow.core.policy import Policy
from gflow.core.scheduling import placement, scheduler
from gflow.core.state import reservations
from gflow.core.state.accounting import Accounting
from gflow.core.state.quotas import PROJECT, USER, Limits
from gflow.core.state.reservations import Reservation, ReservationTable, hard_s
from gflow.core.state.state import State, next_boot_deadline, next_wall_deadline
from gflow.errors import Refused
from gflow.testing import spec

GPUS = 6
PEOPLE = {"ann": 1001, "bob": 1002, "eve": 1003}
SEEDS = range(8)
STEPS = 250
# What the clock moves on between an action and the next tick.
SLACK_S = 0.01


class World:
    """An engine, a clock, and jobs of which some end only when they are killed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 1_000_000.0
        patience, most = self.dice.choice((-1.0, 0.0, 2.0)), self.dice.choice((0, 3))
        policy = Policy(patience=patience, most_running=most)
        self.state = State(cpus=4, memory_mib=1 << 20, policy=policy)
        gpus = tuple(
            Gpu(index=i, uuid=str(i), model="simulated", memory_mib=81920, simulated=True)
            for i in range(GPUS)
        )
        self.ends: dict[int, float] = {}
        self.step(GpusSeen(at=self.at, gpus=gpus))

    @property
    def at(self) -> Moment:
        return Moment(self.now, self.now)

    def step(self, event: object) -> None:
        before = set(self.state.running)
        try:
            effects = step(self.state, event)  # type: ignore[arg-type]
        except Refused:
            return
        check(self.state)
        for effect in effects:
            if isinstance(effect, Stop):  # it ignores TERM
                self.ends[effect.key] = self.now + self.state.running[effect.key].spec.grace_s
        for key in self.state.running.keys() - before:
            job = self.state.running[key]
            length = job.spec.time_limit_s or 3600
            # Some ignore everything but KILL.
            self.ends[key] = self.now + self.dice.choice((self.dice.uniform(0.1, 1.0), 20.0)) * length
            self.check_start(job)
            self.check_hard_end(job)
        self.check_reservations()

    def check_start(self, job: Job) -> None:
        """After a start no user exceeds a quota; caps hold."""
        runs = list(self.state.running.values())
        for scope, name in ((USER, job.user), (PROJECT, job.spec.project)):
            limits = self.state.accounting.quota_usage.quotas.of(scope, name)
            theirs = [one for one in runs if (one.user if scope == USER else one.spec.project) == name]
            most = limits.max_running_jobs
            if most is None and scope == USER:
                most = self.state.policy.most_running or None
            assert most is None or len(theirs) <= most, f"{name} runs too many jobs"
            if limits.max_running_gpus is not None and job.spec.gpus:
                had = sum(one.spec.gpus for one in theirs)
                assert had <= limits.max_running_gpus, f"{name} has too many GPUs"
        if job.spec.max_concurrent:
            together = sum(one.spec.group == job.spec.group for one in runs)
            assert together <= job.spec.max_concurrent, "the cap does not hold"

    def check_hard_end(self, job: Job) -> None:
        """A job that has just started is over before another user's reservation of its GPUs begins."""
        last = self.now + job.spec.time_limit_s + job.spec.grace_s if job.spec.time_limit_s else float("inf")
        for one in self.foreign(job):
            assert one.start >= last, f"job {job.label} may have GPUs when they are reserved for {one.user}"

    def foreign(self, job: Job) -> list[Reservation]:
        """Reservations that other users have of this job's GPUs, and that are not over."""
        mine = set(job.gpu_ids)
        return [one for one in self.state.reserved.live if one.user != job.user and mine & set(one.gpus)]

    def check_reservations(self) -> None:
        """No job of another user has reserved GPUs for longer than its grace time after the beginning."""
        for job in self.state.running.values():
            for one in self.foreign(job):
                since = max(one.start, one.created_at)
                assert self.now <= since + job.spec.grace_s + SLACK_S, (
                    f"job {job.label} of {job.user} has GPUs reserved for {one.user}"
                )
                late = self.now >= since + SLACK_S
                assert not late or job.stopping, f"job {job.label} is not told to leave {one.user}'s GPUs"

    def act(self) -> None:
        self.now += 0.001  # no two things at once
        self.wake()
        roll = self.dice.random()
        user = self.dice.choice(list(PEOPLE))
        if roll < 0.5:
            self.submit(user)
        elif roll < 0.58:
            scope = self.dice.choice((USER, PROJECT))
            name = self.dice.choice((user, "")) if scope == USER else self.dice.choice(("p", "q", ""))
            limits = Limits(self.dice.choice((None, 1, 2, 5)), self.dice.choice((None, 0, 2, 4)), None)
            self.step(SetQuota(at=self.at, uid=0, scope=scope, name=name, limits=limits))
        elif roll < 0.64:
            start = self.now + self.dice.choice((0.0, 100.0, 5000.0))
            end = start + self.dice.choice((50.0, 3000.0))
            count = self.dice.randint(1, GPUS)
            self.step(Reserve(at=self.at, uid=0, user=user, count=count, start=start, end=end))
        elif roll < 0.66 and self.state.reserved.live:
            self.step(Unreserve(at=self.at, uid=0, id=self.dice.choice(self.state.reserved.live).id))
        elif roll < 0.72 and self.state.running:
            self.extend(self.state.running[self.dice.choice(list(self.state.running))])
        else:
            self.pass_time()

    def extend(self, job: Job) -> None:
        """The owner of a job wants more time for it, or no limit."""
        had = job.spec.time_limit_s
        if not had:
            return
        fields = {"time_limit_s": self.dice.choice((0, had + 600, 100_000))}
        self.step(Update(at=self.at, uid=job.uid, keys=(job.key,), fields=fields, outcomes={}))
        limit = job.spec.time_limit_s
        if limit != had:
            last = (job.started_at or 0.0) + limit + job.spec.grace_s if limit else float("inf")
            for one in self.foreign(job):
                assert one.start >= last, f"job {job.label} got time that is {one.user}'s"

    def submit(self, user: str) -> None:
        capped = self.dice.random() < 0.2
        wanted = spec(
            gpus=self.dice.choice((0, 1, 1, 2, 4)),
            time_limit_s=self.dice.choice((0, 60, 600, 3600)),
            grace_s=self.dice.choice((0, 30, 30, 400)),
            requeue=self.dice.random() < 0.2,
            name=self.dice.choice(("", "tiny")),
            project=self.dice.choice(("", "p", "q")),
            priority=self.dice.choice((10, 10, 20)),
            group=7 if capped else 0,
            max_concurrent=2 if capped else 0,
        )
        specs = (wanted,) * self.dice.randint(1, 3)
        self.step(Submit(at=self.at, uid=PEOPLE[user], user=user, specs=specs, outcomes={}))

    def pass_time(self) -> None:
        """To the next end, or to when the engine wants to be woken."""
        ends = {key: end for key, end in self.ends.items() if key in self.state.running}
        first = min(ends.values(), default=self.now + 100)
        wakes = self.wakes_at()
        if self.now < wakes < first:
            self.now = wakes
            self.step(Tick(at=self.at))
        elif ends:
            self.now = max(self.now, first)
            self.end_first()

    def end_first(self) -> None:
        key = min(self.state.running, key=lambda one: (self.ends[one], one))
        attempt = self.state.running[key].attempt
        self.step(Exited(at=self.at, key=key, attempt=attempt, code=0))

    def wakes_at(self) -> float:
        """When the engine wants to be woken; both clocks show the same."""
        times = [next_wall_deadline(self.state), next_boot_deadline(self.state)]
        return min((at for at in times if at is not None), default=float("inf"))

    def wake(self) -> None:
        """What is due happens before anything else does."""
        while any(self.ends[key] <= self.now for key in self.state.running):
            self.end_first()
        if self.wakes_at() <= self.now:
            self.step(Tick(at=self.at))


def live(seed: int) -> State:
    world = World(seed)
    for _ in range(STEPS):
        world.act()
    return world.state


@pytest.mark.parametrize("seed", SEEDS)
def test_quotas_and_reservations_hold(seed: int) -> None:
    live(seed)


def ignored_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReservationTable, "barred", lambda self, job, wall: frozenset())


def only_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ReservationTable,
        "barred",
        lambda self, job, wall: frozenset(
            gpu for one in self.against(job.user, wall, wall + 0.001) for gpu in one.gpus
        ),
    )


def expected_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without a limit is expected to be over soon."""
    monkeypatch.setattr(reservations, "hard_s", lambda spec: hard_s(spec) if spec.time_limit_s else 60.0)


def uncounted_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "hard_s", lambda spec: float(spec.time_limit_s or float("inf")))


def unchecked_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_check_reserved", lambda state, job, spec, event: None)


def never_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "free_reserved", lambda state, effects: None)


def ignored_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accounting, "over_quota", lambda self, job, policy: None)


def ignored_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "is_capped", lambda self, job: False)


def one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    original = placement.choose
    monkeypatch.setattr(
        placement,
        "choose",
        lambda state, shape, lot=0, barred=frozenset(): original(
            state, shape, lot, frozenset(list(barred)[1:])
        ),
    )


MUTANTS = [
    ignored_reservation,
    only_while_it_lasts,
    expected_lengths,
    uncounted_grace,
    unchecked_extension,
    never_freed,
    ignored_quota,
    ignored_cap,
    one_too_many,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            live(seed)
