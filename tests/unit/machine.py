"""A machine to play scenarios on: the real engine and the store's double, no processes.

Every step is checked against the invariants, and against what a daemon would know that died
right after it. `did` says what the last step decided, as short lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gflow.core.effects import Accepted, AddAuditEntry, Effect, Forget, Keep, Ran, Save, Start, Stop, Withdraw
from gflow.core.engine import step
from gflow.core.events import (
    Cancel,
    Drain,
    Event,
    Exited,
    GpusSeen,
    Hold,
    Release,
    Restrict,
    Submit,
    Tick,
    Update,
)
from gflow.core.forecast.explain import explain
from gflow.core.ids import JobKey, label, parse_label
from gflow.core.invariants import check
from gflow.core.model import PARENT_FIELDS, Gpu, Job, JobState, Moment
from gflow.core.reasons import parse
from gflow.core.state.state import State, restore
from gflow.errors import GflowError
from gflow.store.memory import MemoryStore
from gflow.store.port import Changes

from .builders import NOON, UIDS, spec

GIB = 1024


def gpu(index: int, model: str = "NVIDIA A100-SXM4-80GB", gib: float = 80) -> Gpu:
    return Gpu(index=index, uuid=f"GPU-{index}", model=model, memory_mib=int(gib * GIB))


def key_of(text: str | int) -> JobKey:
    key = parse_label(str(text))
    assert key is not None
    return key


def written(effect: Effect) -> str:
    """An effect as a line."""
    match effect:
        case Save(job):
            return f"save {job.label} {job.state.value}" + ("/stopping" if job.stopping else "")
        case AddAuditEntry(key, what, detail):
            return f"note {'machine' if key is None else label(key)} {what}" + (
                f": {detail}" if detail else ""
            )
        case Start(key, attempt):
            return f"start {label(key)} #{attempt}"
        case Stop(key, attempt, now, grace_s):
            how = " now" if now else f" in {grace_s} s" if grace_s else ""
            return f"stop {label(key)} #{attempt}{how}"
        case Withdraw(key, attempt):
            return f"withdraw {label(key)} #{attempt}"
        case Forget(key, attempt):
            return f"forget {label(key)} #{attempt}"
        case Ran(key, attempt):
            return f"ran {label(key)} #{attempt}"
        case Keep(name, value):
            return f"keep {name} = {value}"
        case Accepted(keys):
            return "accepted " + " ".join(map(label, keys))
    raise AssertionError(effect)


class Machine:
    """Jobs are named as people name them: 1, "42_3"."""

    def __init__(self, *gpus: Gpu, cpus: int = 4, memory_mib: int = 64 * GIB, careful: bool = True) -> None:
        self.careful = careful
        self.state = State(cpus=cpus, memory_mib=memory_mib)
        self.state.machine.see_gpus(gpus)
        self.store = MemoryStore()
        self.now = Moment(NOON, 1000.0)
        self.did: list[str] = []

    # ------------------------------------------------------------ events

    def submit(self, *, user: str = "ann", count: int = 1, **asked: Any) -> int:
        """The number of the (first) new job. Parents as `depends_on=[1, "2_3"]`."""
        return self.submit_specs(*[asked] * count, user=user)

    def submit_specs(self, *asked: dict[str, Any], user: str = "ann") -> int:
        specs = tuple(spec(**_parents(fields)) for fields in asked)
        number = self.state.jobs.next_number
        outcomes = self.outcomes(parent for made in specs for parent in made.parents)
        self._step(Submit, uid=UIDS[user], user=user, specs=specs, outcomes=outcomes)
        return number

    def ends(
        self, job: str | int, code: int | None = 0, attempt: int = 0, problem: str = "", **how: Any
    ) -> None:
        attempt = attempt or self[job].attempt
        self._step(Exited, key=key_of(job), attempt=attempt, code=code, problem=parse(str(problem)), **how)

    def cancel(
        self, *jobs: str | int, user: str = "ann", now: bool = False, is_operator: bool = False
    ) -> None:
        keys = tuple(map(key_of, jobs))
        self._step(Cancel, uid=UIDS[user], user=user, is_operator=is_operator, keys=keys, now=now)

    def hold(self, *jobs: str | int, user: str = "ann", is_operator: bool = False) -> None:
        self._step(Hold, uid=UIDS[user], is_operator=is_operator, keys=tuple(map(key_of, jobs)))

    def release(self, *jobs: str | int, user: str = "ann", begin_at: float | None = None) -> None:
        self._step(Release, uid=UIDS[user], keys=tuple(map(key_of, jobs)), begin_at=begin_at)

    def update(self, *jobs: str | int, user: str = "ann", is_operator: bool = False, **fields: Any) -> None:
        fields = _parents(fields)
        parents = [key for name in PARENT_FIELDS for key in fields.get(name, ())]
        for job in jobs:
            found = self.state.jobs.get(key_of(job)) or self.state.jobs.array_with(key_of(job))
            parents += found.spec.parents if found else ()
        keys = tuple(map(key_of, jobs))
        outcomes = self.outcomes(parents)
        self._step(
            Update, uid=UIDS[user], is_operator=is_operator, keys=keys, fields=fields, outcomes=outcomes
        )

    def restrict(self, *allowed: int | None) -> None:
        self._step(Restrict, uid=0, allowed=None if allowed == (None,) else allowed)

    def drain(self, *gpus: int, on: bool = True, reason: str = "", passing: bool = False) -> None:
        self._step(Drain, uid=0, on=on, gpus=gpus or None, reason=reason, passing=passing)

    def see(self, *gpus: Gpu) -> None:
        self._step(GpusSeen, gpus=gpus)

    def hears(self, kind: type[Event], **fields: Any) -> None:
        """Any other event."""
        self._step(kind, **fields)

    def passes(self, seconds: float) -> None:
        """Time goes by, and the alarms ring."""
        self.now = Moment(self.now.wall + seconds, self.now.boot + seconds)
        self._step(Tick)

    # ------------------------------------------------------------ questions

    def __getitem__(self, job: str | int) -> Job:
        found = self.state.jobs.get(key_of(job)) or self.store.job(key_of(job))
        assert found is not None, f"there is no job {job}"
        return found

    def stands(self, job: str | int) -> str:
        """The state and what is said about it: `Failed (ExitCode:2)`, `Queued (Resources)`."""
        found = self[job]
        reason = str(explain(self.state, found, self.now) or found.reason)
        return found.state.value + (f" ({reason})" if reason else "")

    def running(self) -> list[str]:
        active = sorted(self.state.jobs.items())
        return [job.label for _, job in active if job.state is JobState.RUNNING and not job.is_array]

    def outcomes(self, parents: Any) -> dict[JobKey, JobState]:
        return self.store.outcomes(key for key in parents if not self.state.jobs.is_active(key))

    def refusal(self, ask: Callable[..., Any], *args: Any, **fields: Any) -> GflowError:
        """The refusal of a step, which has changed nothing."""
        before = remembered(self.state)
        with pytest.raises(GflowError) as caught:
            ask(*args, **fields)
        assert remembered(self.state) == before
        return caught.value

    # ------------------------------------------------------------ the step

    def _step(self, kind: type[Event], **fields: Any) -> None:
        effects = step(self.state, kind(at=self.now, **fields))
        self.did = [written(effect) for effect in effects]
        saved = {effect.job.key: effect.job for effect in effects if isinstance(effect, Save)}
        self.store.commit(Changes(jobs=saved, meta={"next_number": self.state.jobs.next_number}))
        self.state.jobs.ended.clear()
        if self.careful:
            check(self.state)
            assert remembered(self._restarted()) == remembered(self.state), "a restart would forget something"

    def _restarted(self) -> State:
        machine = self.state.machine
        fresh = State(cpus=machine.cpus, memory_mib=machine.memory_mib, policy=self.state.policy)
        loaded = self.store.load()
        fresh.machine.allowed = self.state.machine.allowed
        fresh.machine.drained, fresh.machine.leaving = self.state.machine.drained, self.state.machine.leaving
        fresh.machine.reclaimed = self.state.machine.reclaimed
        fresh.machine.stalled, fresh.machine.most_runs = machine.stalled, machine.most_runs
        fresh.reserved.load(self.state.reserved.record())
        fresh.accounting.quota_usage.say(self.state.accounting.quota_usage.said)
        fresh.start_reservations.at = self.now
        restore(fresh, loaded.jobs, loaded.outcomes, loaded.recent, loaded.next_number, self.now)
        fresh.machine.see_gpus(self.state.machine.gpus.values())
        check(fresh)
        return fresh


def remembered(state: State) -> dict[str, Any]:
    """What makes two states the same."""
    return {
        "jobs": {
            label(key): msgspec.to_builtins(job, enc_hook=str) for key, job in sorted(state.jobs.items())
        },
        "waits": {
            label(key): sorted(map(label, wait.parents))
            for key, wait in sorted(state.dependencies.waits.items())
        },
        "later": sorted(map(label, state.deadlines.later)),
        "ready": sorted(job.label for job in state.jobs.values() if job in state.ready),
        "holders": state.machine.holders,
        "free": (
            sorted(state.machine.idle),
            sorted(state.machine.open),
            state.machine.free_cpus,
            state.machine.free_memory_mib,
        ),
        "due": (state.deadlines.next_limit(), state.deadlines.next_begin(), state.deadlines.next_retry()),
        "number": state.jobs.next_number,
    }


def _parents(fields: dict[str, Any]) -> dict[str, Any]:
    """The same fields with parents as keys."""
    names = fields.keys() & set(PARENT_FIELDS)
    return fields | {name: tuple(map(key_of, fields[name])) for name in names}
