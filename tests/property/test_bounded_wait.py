"""The wait of a job is bounded, whatever sizes, lengths, names and limits other users choose.

A wide job waits among jobs of the same priority and band, whose users are adversaries. Once it is the first
with a start reservation, a job of another user starts on GPUs that it needs only if it ends in time, or runs
for longer than any run of its kind before. docs/scheduling.md ("Starvation") states the bound.
"""

from __future__ import annotations

import random
import re

import pytest

from gflow.core.policy import Policy
from gflow.core.state.queue import LIMITS_COUNT
from gflow.core.state.runtime_estimates import OUTLASTS, SPAN_S, UNKNOWN_S, RuntimeEstimates
from gflow.core.state.start_reservations import StartReservation
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry

POOL = 8
SEEDS = range(12)
POLICY = Policy(fair_share=False)
VICTIM = "victim"
# The longest run, and the longest time limit.
LONGEST_S, LIMIT_S = 30_000.0, 86_400
# After this wait all older jobs are due, whatever they ask for.
DUE_S = POLICY.patience * max(UNKNOWN_S, OUTLASTS * LONGEST_S, LIMITS_COUNT * LIMIT_S)


def workload(seed: int) -> list[Entry]:
    """Eight days of adversaries who keep all GPUs busy, and a wide job after two days."""
    dice = random.Random(seed)
    users = dice.randint(1, 4)
    lengths = dice.choice(
        ((60.0, LONGEST_S), (600.0, 1200.0), (7000.0, 7400.0), (60.0, 60.0, 60.0, LONGEST_S))
    )
    is_growing, naming = dice.random() < 0.3, dice.choice(("same", "digits", "letters", "mixed"))
    made, now = [], 0.0
    while now < 8 * 86_400.0 and len(made) < 600:
        length = dice.choice(lengths) * dice.uniform(0.5, 1.0)
        if is_growing:
            length = min(LONGEST_S, 60.0 * 1.02 ** len(made))
        gpus = dice.choice((1, 1, 1, 2, 4, 8))
        limit = dice.choice((0, 0, 0, int(length) + 1, LIMIT_S))
        kind = naming if naming != "mixed" else dice.choice(("same", "digits", "letters"))
        letters = "".join(dice.choices("abcdefghij", k=8))
        name = {"same": "train", "digits": f"run-{len(made)}", "letters": letters}[kind]
        made.append(Entry(now, length, gpus, f"user{dice.randrange(users)}", name, limit))
        now += dice.expovariate(1.2 * POOL / (length * gpus))
    return sorted([*made, Entry(2 * 86_400.0, 600.0, POOL, VICTIM, "wide", 600)])


class Watched(Replay):
    """Checks each start while the victim is the first with a start reservation."""

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__(entries, POOL, POLICY)
        self.victim = next(index for index, entry in enumerate(entries) if entry.user == VICTIM)
        # When the victim became the first with a reservation, and the latest start that is possible now.
        self.first_at: float | None = None
        self.bound = 0.0
        self.checked = 0
        self._running: dict[int, float] = {}
        self._ended: list[tuple[Entry, float]] = []

    def longest(self, entry: Entry, now: float) -> float:
        """The longest run of the kind that has ended, or of the user's work on as many GPUs."""
        work = re.sub(r"\d+", "#", entry.name)
        alike = [(old, at) for old, at in self._ended if (old.user, old.gpus) == (entry.user, entry.gpus)]
        same = [old.duration for old, _ in alike if re.sub(r"\d+", "#", old.name) == work]
        if not same and entry.limit:
            return float(entry.limit)
        span = now // SPAN_S
        return max(same or [old.duration for old, at in alike if at // SPAN_S < span], default=UNKNOWN_S)

    def _apply(self, effects, now):
        before, was_first = list(self.starts), self.first_at is not None
        super()._apply(effects, now)
        reserved = self._note_reservation(now)
        for index in [index for index, end in self._running.items() if end <= now]:
            self._ended.append((self._entries[index], self._running.pop(index)))
        for index, entry in enumerate(self._entries):
            if self.starts[index] != before[index]:
                self._running[index] = now + entry.duration
                if was_first and reserved is not None and index != self.victim:
                    self._check(entry, now, reserved)

    def _check(self, entry: Entry, now: float, reserved: float) -> None:
        """All GPUs are reserved: the job ends in time, or is longer than all of its kind before."""
        self.checked += 1
        if now + entry.duration > reserved:
            longest = self.longest(entry, now)
            assert entry.duration > longest, f"{entry} passed, and runs of {longest} s have been seen"
            self.bound += OUTLASTS * entry.duration

    def _note_reservation(self, now: float) -> float | None:
        """The reserved start of the victim, if it is the first with one."""
        entries = self.state.start_reservations.entries
        if not entries or (entries[0].key >> 20) - 1 != self.victim:
            return None
        if self.first_at is None:
            self.first_at = now
            self.bound = max(entries[0].start_at, now + OUTLASTS * LONGEST_S)
        return entries[0].start_at


def check(seed: int) -> int:
    """Check one workload; how many jobs were started before the victim while it had the reservation."""
    entries = workload(seed)
    watched = Watched(entries)
    watched.run()
    submitted, started = entries[watched.victim].submit, watched.starts[watched.victim]
    due = started if watched.first_at is None else watched.first_at
    older = sum(watched.starts[index] > submitted for index in range(watched.victim))
    assert due <= submitted + DUE_S + older * LONGEST_S, f"due only after {due - submitted} s"
    assert watched.first_at is None or started <= watched.bound, f"started at {started}, not {watched.bound}"
    return watched.checked


@pytest.mark.parametrize("seed", SEEDS)
def test_wait_is_bounded_whatever_other_users_submit(seed):
    check(seed)


def test_jobs_pass_in_these_workloads():
    assert sum(map(check, SEEDS)) > 20


# ---------------------------------------------------------------- mutants


def by_estimate(monkeypatch):
    """Jobs of other users are backfilled by their estimates."""
    monkeypatch.setattr(RuntimeEstimates, "longest", lambda self, limit_s, batch: self.length(limit_s, batch))


def unknown_work_is_short(monkeypatch):
    """Of unknown work, the user's other jobs say nothing about how long it may run."""
    original = RuntimeEstimates._longest_run
    monkeypatch.setattr(
        RuntimeEstimates,
        "_longest_run",
        lambda self, batch: original(self, batch) if batch.kind in self._longest else 0.0,
    )


def part_of_the_time(monkeypatch):
    """Half of a job must end in time."""
    original = StartReservation.ends_before
    monkeypatch.setattr(StartReservation, "ends_before", lambda self, length: original(self, length / 2))


# One of the few workloads in which unknown work is long.
SHOWS_UNKNOWN_WORK = 94
MUTANTS = [by_estimate, unknown_work_is_short, part_of_the_time]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_rule_without_the_bound_is_noticed(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"passed|due only|started at"):
        for seed in (SHOWS_UNKNOWN_WORK, *range(60)):
            check(seed)
