"""Jobs of another target among jobs of this machine: whatever both say, in whatever order.

The cluster here is dice: it says that attempts wait, run, end or never began; also of those long over.
"""

from __future__ import annotations

import random
from unittest import mock

import pytest

from gflow.core.effects import Effect, Start, Stop, Withdraw
from gflow.core.engine import step
from gflow.core.events import (
    Cancel,
    Drain,
    Event,
    Exited,
    GpusSeen,
    Hold,
    Release,
    RemoteStatus,
    Seen,
    Submit,
    Tick,
    Update,
)
from gflow.core.forecast.explain import explain
from gflow.core.ids import JobKey, job_key, label
from gflow.core.invariants import check
from gflow.core.model import JobState
from gflow.core.reasons import WITHDRAWN, parse
from gflow.core.state.state import State
from gflow.daemon.loop import timers as daemon_clock
from gflow.daemon.loop.stored_state import gather, keep_counts, reload
from gflow.errors import GflowError
from gflow.store.port import Changes
from gflow.testing import FakeClock, MemoryStore, spec
from tests.property.snapshot import assert_same
from tests.property.world import CPUS, MEMORY_MIB, POOL

ENDS = (
    (0, None, ""), (0, None, ""), (3, None, ""), (75, None, ""), (None, 9, ""), (None, None, "TimeLimit"),
    (None, None, "NodeFail"), (None, None, "Preempted"), (None, None, "Lost"), (143, None, "CancelledThere"),
    (None, None, "StartFailed: no"), (None, None, "Recalled"),
)  # fmt: skip
REQUESTS = (
    {}, {"array": "0-3"}, {"array": "0-5", "max_concurrent": 2}, {"requeue": True}, {"hold": True},
    {"race": ("local:n1_gpu1", "n2_gpu1"), "gpus": 1}, {"race": ("local:n1_gpu2", "n4_gpu1"), "gpus": 2},
    {"race": ("local:n1_gpu0", "n4_gpu1"), "gpus": 0, "requeue": True, "max_concurrent": 1},
    {"race": ("local:n1_gpu4", "n4_gpu1"), "gpus": 4, "preemptible": True, "max_retries": 1},
    {"race": ("local:n1_gpu1", "n2_gpu1"), "gpus": 1}, {"race": ("local:n1_gpu2", "n4_gpu1"), "gpus": 2},
    {"race": ("local:n1_gpu0", "n4_gpu1"), "gpus": 0, "requeue": True, "max_concurrent": 1},
    {"race": ("local:n1_gpu4", "n4_gpu1"), "gpus": 4, "preemptible": True, "max_retries": 1},
    {"max_retries": 2}, {"max_concurrent": 1}, {"array": "1-2", "requeue": True}, {"nodes": 2, "gpus": 4},
)  # fmt: skip


class RemoteState:
    """The engine, a store, and the runs that were started and have not ended."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.state = State(cpus=CPUS, memory_mib=MEMORY_MIB)
        self.started: set[tuple[JobKey, int]] = set()
        self.alive: set[tuple[JobKey, int]] = set()
        # How often a job that races was taken back from there, to start here.
        self.withdrawn = 0
        self.apply(GpusSeen(at=self.clock.now(), gpus=POOL))

    def apply(self, event: Event) -> None:
        try:
            effects = step(self.state, event)
        except GflowError:
            check(self.state)
            return
        changes = Changes()
        gather(changes, effects, getattr(event, "uid", None), "test", event.at)
        keep_counts(changes, self.state)
        self.store.commit(changes)
        self.state.jobs.ended.clear()
        for effect in effects:
            self._take(effect)
        check(self.state)
        for job in self.state.jobs.values():
            due = job.overflows_at
            if due is not None and due <= event.at.boot and job in self.state.ready and type(event) is Tick:
                assert self.state.machine.is_drained or self.state.is_capped(job), (
                    f"{job.label} stays too long"
                )
            if job.state is not JobState.RUNNING:
                assert explain(self.state, job, self.clock.now()) is not None, (
                    f"{job.label} waits without a reason"
                )

    def _take(self, effect: Effect) -> None:
        if isinstance(effect, Start):
            run = (effect.key, effect.attempt)
            assert run not in self.started, f"{label(effect.key)} attempt {effect.attempt} starts twice"
            self.started.add(run)
            self.alive.add(run)
        elif isinstance(effect, Withdraw) and self.state.jobs[effect.key].spec.races_here:
            self.withdrawn += 1
        elif isinstance(effect, (Stop, Withdraw)):
            assert self.state.jobs[effect.key].attempt == effect.attempt

    def restart(self) -> None:
        self.tick()
        with mock.patch.object(daemon_clock, "now", self.clock.now):
            fresh = reload(self.state, self.store)
        assert_same(self.state, fresh, "memory and store differ")
        check(fresh, settled=False)
        self.state = fresh
        self.apply(GpusSeen(at=self.clock.now(), gpus=POOL))

    def turn(self) -> None:
        """Something happens."""
        self.clock.advance(self.dice.choice((0.0, 1.0, 70.0)))
        self.dice.choice(
            (self.submit, self.say, self.say, self.end, self.end, self.change, self.restart, self.tick)
        )()

    def submit(self) -> None:
        if len(self.state.jobs) > 30:
            return
        fields = dict(self.dice.choice(REQUESTS)) | {"on": self.dice.choice(("slurm", "slurm", "other", ""))}
        if "race" in fields:
            fields["on"] = "slurm"
        if "race" in fields:
            fields["on"] = "slurm"
        if not fields["on"] and not fields.keys() & {"array", "nodes"} and self.dice.random() < 0.7:
            after = self.dice.choice((0, 30, 500))
            fields |= {"overflow": "slurm", "overflow_after_s": after, "gpus": self.dice.choice((0, 1, 4))}
            fields["time_limit_s"] = self.dice.choice((0, 60))
        if self.dice.random() < 0.3 and self.state.jobs:
            fields |= {"depends_on": (self.dice.choice(sorted(self.state.jobs)),), "no_auto_cancel": True}
        if fields.get("max_concurrent") and "array" not in fields:
            fields["group"] = self.state.jobs.next_number
        made = (spec(**fields),) * self.dice.choice((1, 1, 2))
        self.apply(Submit(at=self.clock.now(), uid=1001, user="ann", specs=made, outcomes={}))

    def some_run(self) -> tuple[JobKey, int]:
        """An attempt, sometimes one that is over, sometimes a task that waits in its array."""
        here = self.dice.random() < 0.3
        keys = sorted((self.state.running if here else self.state.remote.jobs) or self.state.jobs)
        if not keys or self.dice.random() < 0.1:
            return self.dice.choice(sorted(self.started or {(job_key(1), 1)}))
        job = self.state.jobs[self.dice.choice(keys)]
        if job.progress is not None and job.progress.pending and self.dice.random() < 0.8:
            return job_key(job.number, self.dice.choice(list(job.progress.pending))), job.attempt
        return job.key, job.attempt

    def say(self) -> None:
        news = []
        for _ in range(self.dice.choice((1, 1, 3))):
            key, attempt = self.some_run()
            running = self.dice.random() < 0.6
            reason = "" if running else self.dice.choice(("Priority", "Resources: busy"))
            news.append(
                RemoteStatus(key=key, attempt=attempt, running=running, reason=reason, id="7", nodes="n1")
            )
        self.apply(Seen(at=self.clock.now(), statuses=tuple(news)))

    def end(self) -> None:
        key, attempt = self.some_run()
        code, signal, problem = self.dice.choice(ENDS)
        self.apply(
            Exited(
                at=self.clock.now(),
                key=key,
                attempt=attempt,
                code=code,
                signal=signal,
                problem=parse(problem),
            )
        )

    def change(self) -> None:
        key, _ = self.some_run()
        at, uid = self.clock.now(), 1001
        some: list[Event] = [
            Cancel(at=at, uid=uid, keys=(key,), now=self.dice.random() < 0.3),
            Hold(at=at, uid=uid, keys=(key,)),
            Release(at=at, uid=uid, keys=(key,)),
            Release(at=at, uid=uid, keys=(key,), begin_at=at.wall + 60),
            Update(at=at, uid=uid, keys=(key,), fields={"priority": 50}, outcomes={}),
            Update(at=at, uid=uid, keys=(key,), fields={"gpus": 1}, outcomes={}),
            Drain(at=at, uid=0, on=False),
            Drain(at=at, uid=0, on=self.dice.random() < 0.3),
        ]
        self.apply(self.dice.choice(some))

    def tick(self) -> None:
        self.apply(Tick(at=self.clock.now()))

    def finish(self) -> None:
        """When everything there has ended, no job is remote any more."""
        self.apply(Drain(at=self.clock.now(), uid=0, on=False))
        for key in sorted(self.state.jobs):
            self.apply(Cancel(at=self.clock.now(), uid=0, keys=(key,)))
        for key in sorted(self.state.remote.jobs, reverse=True):
            if key in self.state.jobs:
                attempt = self.state.jobs[key].attempt
                self.apply(
                    Exited(at=self.clock.now(), key=key, attempt=attempt, code=None, problem=WITHDRAWN)
                )
        assert not self.state.remote.jobs and not self.state.remote.pending


@pytest.mark.parametrize("seed", range(60))
def test_invariants_hold_for_any_cluster_answer(seed):
    world = RemoteState(seed)
    for _ in range(150):
        world.turn()
    world.finish()
