"""Start reservations: with known run times, no job that starts earlier ever delays one.

Workloads of random jobs run on the engine with exact limits and a clock of their own.
"""

from __future__ import annotations

import random

import pytest

from gflow.core.engine import step
from gflow.core.events import GpusSeen
from gflow.core.model import Gpu, Moment
from gflow.core.policy import USUAL, Policy
from gflow.core.resources import Shape
from gflow.core.scheduling import backfill, scheduler
from gflow.core.state import fair_share
from gflow.core.state.queue import Walk
from gflow.core.state.state import State
from gflow.simulate.replay import POLICIES, Replay
from gflow.simulate.trace import Entry

POOL = 8
SEEDS = range(6)
PLAIN = Policy(fair_share=False, lengths="limits", patience=2.0)


def workload(seed: int, jobs: int = 300) -> list[Entry]:
    """A crowd of narrow jobs, and wide ones that they could starve."""
    dice = random.Random(seed)
    made, now = [], 0.0
    for _ in range(jobs):
        now += dice.expovariate(1 / 300)
        made.append(Entry(now, float(dice.randint(60, 7200)), dice.choice((1, 1, 1, 2, 3, 8))))
    return made


class Watched(Replay):
    """Notes the first start reservation of each job."""

    def __init__(self, entries: list[Entry], policy: Policy) -> None:
        super().__init__(entries, POOL, policy, exact=True)
        self.reserved: dict[int, float] = {}

    def _apply(self, effects, now):
        super()._apply(effects, now)
        for reservation in self.state.start_reservations.entries[:1]:  # later ones give way to the first
            self.reserved.setdefault((reservation.key >> 20) - 1, reservation.start_at)


def check_reservations(policy: Policy, seed: int) -> int:
    """All of them are kept; how many there were."""
    watched = Watched(workload(seed), policy)
    watched.run()
    for place, until in watched.reserved.items():
        assert watched.starts[place] <= until, (
            f"job {place + 1} was reserved {until}, not {watched.starts[place]}"
        )
    return len(watched.reserved)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("order", ["shortest", "arrival"])
@pytest.mark.parametrize("patience", [0.0, 2.0])
def test_start_reservation_is_never_delayed(order, patience, seed):
    policy = Policy(fair_share=False, lengths="limits", patience=patience, order=order)
    assert check_reservations(policy, seed) > 10


def most_passed(policy: Policy, seed: int) -> float:
    """Pool-fulls of later jobs that passed the job they passed most."""
    entries = workload(seed)
    replay = Replay(entries, POOL, policy, exact=True)
    replay.run()
    starts = replay.starts
    return max(
        sum(entries[j].gpus for j in range(i + 1, len(entries)) if starts[j] < starts[i]) / POOL
        for i in range(len(entries))
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_backfill_is_bounded_by_patience(seed):
    """After the budget is spent, only what does not delay the job passes it; without one, many more do."""
    assert most_passed(POLICIES["unprotected"][1], seed) > 2 * most_passed(PLAIN, seed)


def test_strict_order_has_no_backfill():
    assert most_passed(POLICIES["fifo"][1], 0) == 0


# ---------------------------------------------------------------- mutants


def past_the_shadow(monkeypatch):
    """Backfill looks at what is free now, and not at how long it takes."""
    monkeypatch.setattr(backfill.StartReservation, "allows", lambda self, shape, gpu_ids, length: True)


def too_short(monkeypatch):
    """Backfill takes a job for half as long as it is."""
    original = backfill.StartReservation.allows
    monkeypatch.setattr(
        backfill.StartReservation,
        "allows",
        lambda self, shape, ids, length: original(self, shape, ids, length / 2),
    )


def ignored(monkeypatch):
    """Start reservations are ignored."""
    monkeypatch.setattr(scheduler, "may_backfill", lambda state, job, gpu_ids: True)
    monkeypatch.setattr(scheduler, "refusing_reservation", lambda state, job, gpu_ids: None)


@pytest.mark.parametrize("mutant", [past_the_shadow, too_short, ignored], ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="was reserved"):
        for seed in SEEDS:
            check_reservations(PLAIN, seed)


# ---------------------------------------------------------------- skipped buckets


def shared_workload(seed: int, jobs: int = 250) -> list[Entry]:
    """Work of four users: of known and unknown kinds, with limits and without, in bursts."""
    dice = random.Random(seed)
    made, now = [], 0.0
    for _ in range(jobs):
        now += dice.choice((0.0, 0.0, dice.expovariate(1 / 1500)))
        length = dice.choice((300.0, 3600.0, 20_000.0)) * dice.uniform(0.5, 1.5)
        name = dice.choice(("train", "eval", "".join(dice.choices("abcdef", k=4))))
        limit = dice.choice((0, 0, int(length * dice.uniform(1.0, 5.0)) + 1))
        user = f"user{dice.choice((0, 0, 1, 2, 3))}"
        made.append(Entry(now, length, dice.choice((1, 1, 1, 2, 8)), user, name, limit))
    return made


def starts_of(seed: int) -> list[float]:
    replay = Replay(shared_workload(seed), POOL, USUAL)
    replay.run()
    return replay.starts


def check_skips(seed: int) -> None:
    """Skipping the rest of a bucket changes no decision."""
    found = starts_of(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walk, "skip_refused", lambda walk, job, refusing, reservations: walk.skip(job))
        assert found == starts_of(seed), "a job was skipped that could start"


@pytest.mark.parametrize("seed", SEEDS)
def test_skipped_groups_could_not_start(seed):
    check_skips(seed)


def whole_bucket_skipped(monkeypatch):
    """A job that is refused stands for all later ones, however short their runs are."""

    def skip(walk, job, refusing, reservations):
        walk._closed.setdefault(walk._queue.group_of(job).bucket.key, [])

    monkeypatch.setattr(Walk, "skip_refused", skip)


def own_jobs_skipped(monkeypatch):
    """Jobs of the user of the reservation are skipped, too."""
    original = Walk.skip_refused

    def skip(walk, job, refusing, reservations):
        original(walk, job, refusing, reservations)
        if walk._queue.group_of(job).bucket.key in walk._closed:
            walk._closed[walk._queue.group_of(job).bucket.key] = []

    monkeypatch.setattr(Walk, "skip_refused", skip)


@pytest.mark.parametrize(
    "mutant", [whole_bucket_skipped, own_jobs_skipped], ids=lambda mutant: mutant.__name__
)
def test_a_skip_of_too_many_is_caught(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="skipped"):
        for seed in range(40):
            check_skips(seed)


# ---------------------------------------------------------------- fair share


def served(policy: Policy) -> tuple[int, int]:
    """How many of the ten starts after ann had the pool for a day are hers, and how many are bob's."""
    entries = [Entry(0.0, 86400.0, POOL, "ann")]
    entries += [Entry(10.0 + i, 600.0, POOL, user) for i in range(10) for user in ("ann", "bob")]
    replay = Replay(sorted(entries), POOL, policy, exact=True)
    replay.run()
    ran = sorted(zip(replay.starts, sorted(entries), strict=True))[1:11]
    return sum(e.user == "ann" for _, e in ran), sum(e.user == "bob" for _, e in ran)


def test_fair_share_puts_heavy_users_last():
    assert served(Policy(patience=-1.0)) == (0, 10)
    assert served(Policy(patience=-1.0, fair_share=False)) == (5, 5)


def occupied(cpus: int, memory_mib: int) -> float:
    """GPU-seconds that a job of ten seconds counts as, on a machine of 8 GPUs, 64 CPU slots and 1 TiB."""
    state = State(cpus=64, memory_mib=1 << 20)
    gpus = tuple(Gpu(index=index, uuid=str(index), model="A100", memory_mib=81920) for index in range(8))
    step(state, GpusSeen(at=Moment(0.0, 0.0), gpus=gpus))
    share = state.accounting.fair_share
    share.run(1001, Shape(1, cpus, memory_mib, 0, False, ""), 0.0)
    return share.use(1001, 10.0)


def test_fair_share_counts_the_largest_part_of_the_machine():
    assert occupied(cpus=8, memory_mib=1 << 17) == pytest.approx(10, rel=0.001), "each is an eighth"
    assert occupied(cpus=16, memory_mib=0) == pytest.approx(20, rel=0.001)
    assert occupied(cpus=0, memory_mib=1 << 19) == pytest.approx(40, rel=0.001)


def test_fair_share_with_the_wrong_sign_is_noticed(monkeypatch):
    original = fair_share._band
    monkeypatch.setattr(fair_share, "_band", lambda *use: 1 - original(*use))
    with pytest.raises(AssertionError):
        test_fair_share_puts_heavy_users_last()
