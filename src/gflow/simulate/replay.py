"""Replay of a trace by discrete-event simulation, and the policies that can be compared.

The events are the submissions of the trace and a heap of ends; the engine makes all decisions. Each policy is
the same engine with other settings.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable
from typing import NamedTuple

from gflow.core.effects import Effect, Start, Stop
from gflow.core.engine import step
from gflow.core.events import Exited, GpusSeen, Submit, Tick
from gflow.core.ids import JobKey, job_key, number_of
from gflow.core.model import Gpu, Moment, Spec
from gflow.core.policy import USUAL, Policy
from gflow.core.state.state import State
from gflow.core.transitions import QUEUED
from gflow.simulate.trace import Entry

# More CPUs and memory than any trace asks for: only GPUs are simulated.
PLENTY = 1 << 40
FIRST_UID = 1000
# Submissions between two calls of `on_progress`.
PROGRESS_EVERY = 2000


class ReplayedJob(NamedTuple):
    """One job of the trace, its last run, and earlier runs from which it was preempted."""

    entry: Entry
    start: float
    end: float
    preempted: tuple[tuple[float, float], ...] = ()

    @property
    def wait_s(self) -> float:
        """The time in which it made no progress: also what preemptions cost it."""
        if not self.preempted:
            return self.start - self.entry.submit
        return self.end - self.entry.submit - self.entry.duration

    @property
    def runs(self) -> tuple[tuple[float, float], ...]:
        """All runs: when each started and ended."""
        return (*self.preempted, (self.start, self.end))


class Replay:
    """The engine, a virtual clock, and the jobs of a trace.

    `exact`: time limits are the run times. `resumes`: a preempted job goes on where it was stopped; if not,
    it starts over. It stops at once, without its grace time.
    """

    def __init__(
        self,
        entries: list[Entry],
        pool: int,
        policy: Policy,
        *,
        exact: bool = False,
        resumes: bool = False,
    ) -> None:
        self._entries = entries
        self._exact, self._resumes = exact, resumes
        self._uids = {user: FIRST_UID + index for index, user in enumerate(sorted({e.user for e in entries}))}
        self.state = State(cpus=PLENTY, memory_mib=PLENTY, policy=policy)
        self.starts: list[float] = [-1.0] * len(entries)
        # Ends of attempts. That of a preempted attempt stays, and the engine ignores it.
        self._ends: list[tuple[float, JobKey, int]] = []
        # By the index of a preempted job: its earlier runs, and how long it has still to run.
        self._preempted: dict[int, list[tuple[float, float]]] = {}
        self._left: dict[int, float] = {}
        # Jobs with equal requests share one spec.
        self._specs: dict[tuple[int, str, int, int, bool], Spec] = {}
        gpus = tuple(
            Gpu(index=index, uuid=str(index), model="simulated", memory_mib=81920, simulated=True)
            for index in range(pool)
        )
        first = entries[0].submit if entries else 0.0
        step(self.state, GpusSeen(at=Moment(first, first), gpus=gpus))

    def run(
        self,
        on_progress: Callable[[int], None] | None = None,
        on_submit: Callable[[JobKey, float], None] | None = None,
    ) -> list[ReplayedJob]:
        """Run to the end of the last job. `on_progress` is called with the number of submissions so far,
        `on_submit` with the key of each job after the step that accepts it, and the time.
        """
        collects = gc.isenabled()
        gc.disable()  # there are no reference cycles, and the collector takes a fifth of the time
        try:
            self._simulate(on_progress, on_submit)
        finally:
            if collects:
                gc.enable()
        return [self._replayed(index, entry) for index, entry in enumerate(self._entries)]

    def _replayed(self, index: int, entry: Entry) -> ReplayedJob:
        start = self.starts[index]
        end = start + self._left.get(index, entry.duration)
        return ReplayedJob(entry, start, end, tuple(self._preempted.get(index, ())))

    def _simulate(
        self,
        on_progress: Callable[[int], None] | None,
        on_submit: Callable[[JobKey, float], None] | None,
    ) -> None:
        entries, ends, state = self._entries, self._ends, self.state
        count, index, now = len(entries), 0, 0.0
        never = float("inf")
        while index < count or ends:
            submit = entries[index].submit if index < count else never
            end = ends[0][0] if ends else never
            reserved = state.start_reservations.next_start()
            if reserved is not None and now < reserved < min(submit, end):
                now = reserved
                self._apply(step(state, Tick(at=_moment(now))), now)
            elif end <= submit:
                now, key, attempt = heapq.heappop(ends)
                exited = Exited(at=_moment(now), key=key, attempt=attempt, code=0)
                self._apply(step(state, exited), now)
                state.jobs.ended.clear()
            else:
                now = submit
                self._apply(step(state, self._submission(entries[index], now)), now)
                index += 1
                if on_submit is not None:
                    on_submit(job_key(index), now)
                if on_progress is not None and not index % PROGRESS_EVERY:
                    on_progress(index)

    def _submission(self, entry: Entry, now: float) -> Submit:
        limit = int(-(-entry.duration // 1)) if self._exact else entry.limit
        request = (entry.gpus, entry.name, limit, entry.priority, entry.preemptible)
        spec = self._specs.get(request)
        if spec is None:
            spec = self._specs[request] = Spec(
                command=(),
                cwd="",
                gpus=entry.gpus,
                name=entry.name,
                time_limit_s=limit,
                priority=entry.priority,
                preemptible=entry.preemptible,
            )
        user = entry.user
        return Submit(at=_moment(now), uid=self._uids[user], user=user, specs=(spec,), outcomes={})

    def _apply(self, effects: list[Effect], now: float) -> None:
        """Record the starts, and schedule the ends of the started and of the preempted jobs."""
        for effect in effects:
            if type(effect) is Start:
                index = number_of(effect.key) - 1
                self.starts[index] = now
                left = self._left.get(index, self._entries[index].duration)
                heapq.heappush(self._ends, (now + left, effect.key, effect.attempt))
            elif type(effect) is Stop and self.state.jobs[effect.key].stopping is QUEUED:
                self._preempt(number_of(effect.key) - 1, now)
                heapq.heappush(self._ends, (now, effect.key, effect.attempt))

    def _preempt(self, index: int, now: float) -> None:
        start = self.starts[index]
        self._preempted.setdefault(index, []).append((start, now))
        if self._resumes:
            left = self._left.get(index, self._entries[index].duration)
            self._left[index] = max(0.0, left - (now - start))


def _moment(now: float) -> Moment:
    """A time at which both clocks are equal."""
    return Moment(now, now)


def _in_order(patience: float, *, backfill: bool = True) -> Policy:
    """A policy in order of arrival that knows time limits only."""
    return Policy(
        order="arrival",
        fair_share=False,
        lengths="limits",
        patience=patience,
        backfill=backfill,
        max_start_reservations=1,
    )


POLICIES: dict[str, tuple[str, Policy]] = {
    "fifo": ("strictly in order of arrival, without backfilling", _in_order(0.0, backfill=False)),
    "greedy": ("in order of arrival; every job that fits starts", _in_order(-1.0)),
    "easy": ("EASY backfilling by time limits", _in_order(0.0)),
    "easy-perfect": ("EASY backfilling, all run times known", _in_order(0.0)),
    "ours": ("the default policy of gflowd", USUAL),
    "throughput": ("ours, with policy.patience = 14", Policy(patience=14.0)),
    "unprotected": ("ours, with policy.protect = false", Policy(patience=-1.0)),
}
