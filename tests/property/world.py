"""A daemon without a daemon: the engine, a store and two clocks, and everything that must hold.

Every event goes to two states. The one is rebuilt from the store again and again, the other
never: that both always decide the same is what "the engine is a function" and "a restart
costs nothing" mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from unittest import mock

import msgspec

from gflow.core.effects import Effect
from gflow.core.engine import step
from gflow.core.events import Arrive, Event, GpusSeen, Submit, Tick, Update
from gflow.core.forecast.explain import Blocker, explain
from gflow.core.ids import JobKey, number_of, task_of
from gflow.core.invariants import check
from gflow.core.model import Gpu, Job, JobState
from gflow.core.policy import USUAL, Policy
from gflow.core.scheduling.placement import placement
from gflow.core.state.state import State
from gflow.core.task_set import parse_tasks
from gflow.daemon.loop import timers as daemon_clock
from gflow.daemon.loop.commands import named_parents
from gflow.daemon.loop.loop import known_gpus
from gflow.daemon.loop.stored_state import gather, keep_counts, reload
from gflow.errors import Forbidden, GflowError, NotFound, Refused, UsageError
from gflow.store.port import Changes, Store
from gflow.testing import FakeClock, MemoryStore
from tests.property.reference_model import ReferenceModel, find_cycle, records_of
from tests.property.snapshot import assert_same

CPUS = 6
MEMORY_MIB = 64 << 10
# Jobs of one turn where there are many: so few that what is cut into turns is.
PART = 3
# 80G on a card sold as 80 GB fits, by the slack; two small cards of another make.
POOL = tuple(
    Gpu(index=index, uuid=f"GPU-{index}", model=model, memory_mib=memory, simulated=True)
    for index, (model, memory) in enumerate(
        [("NVIDIA A100-SXM4-80GB", 81559)] * 4 + [("RTX 4090", 24564)] * 2
    )
)


class World:
    """Takes events as the daemon's loop does, and fails when anything is not as it must be."""

    def __init__(self, *, disk: Store | None = None, policy: Policy = USUAL) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.disk = disk
        self.state = State(cpus=CPUS, memory_mib=MEMORY_MIB, policy=policy)
        self.twin = State(cpus=CPUS, memory_mib=MEMORY_MIB, policy=policy)
        self.state.part = self.twin.part = PART
        # Numbers of jobs that are not there yet, or never came.
        self.unseen: set[int] = set()
        self.reference = ReferenceModel(CPUS, MEMORY_MIB)
        # Number of every array ever -> its tasks.
        self.arrays: dict[int, frozenset[int]] = {}
        self.changes = Changes()
        self.steps = 0
        self.refusals = 0
        self.restarts = 0
        self.trace: deque[Event | str] = deque(maxlen=30)
        self.apply(GpusSeen(at=self.clock.now(), gpus=POOL))
        self.commit()

    def event_log(self) -> str:
        """What happened last, one event a line."""
        return "\n  ".join(
            line if isinstance(line, str) else f"{type(line).__name__} {msgspec.json.encode(line).decode()}"
            for line in self.trace
        )

    # ------------------------------------------------------------ events

    def apply(self, event: Event) -> bool:
        """One event through both states. False: it was refused, and nothing has changed."""
        self.steps += 1
        self.trace.append(event)
        records = records_of(event, self.state)
        try:
            effects = step(self.state, event)
        except GflowError as error:
            self._refused(event, error)
            return False
        self._taken(event, effects, records)
        return True

    def _taken(self, event: Event, effects: list[Effect], records: set[JobKey]) -> None:
        others = step(self.twin, event)
        assert effects == others, f"same events, other effects: {effects} and {others}"
        if isinstance(event, Submit):
            self._note_arrays(event)
        self.reference.take(event, effects, self.state, records)
        gather(self.changes, effects, getattr(event, "uid", None), "test", event.at)
        self._check(event)

    def _refused(self, event: Event, error: GflowError) -> None:
        self.refusals += 1
        assert isinstance(error, (Refused, NotFound, Forbidden, UsageError)), f"not a refusal: {error!r}"
        assert_same(self.state, self.twin, f"the refused event {event} has changed something")
        if isinstance(error, NotFound) and isinstance(event, (Submit, Update)):
            self._check_unknown(event, error)
        try:
            step(self.twin, event)
        except GflowError as other:
            assert (type(other), other.message) == (type(error), error.message)
        else:
            raise AssertionError(f"one state refuses {event}, the other does not")
        assert_same(self.state, self.twin, f"the refused event {event} has changed something")

    def _check(self, event: Event) -> None:
        check(self.state)
        self.reference.check(self.state, event)
        if isinstance(event, (Submit, Update)):
            circle = find_cycle(self.state)
            assert circle is None, f"a circle: {circle}"
        self._check_explained(event)

    def _check_explained(self, event: Event) -> None:
        """A waiting job has a reason. One job per step, each in its turn."""
        waiting = [job for job in self.state.jobs.values() if job.state is not JobState.RUNNING]
        if waiting:
            job = waiting[self.steps % len(waiting)]
            why = explain(self.state, job, event.at)
            assert why is not None, f"{job.label} waits without a reason"
            if why == Blocker("Resources"):
                self._check_taken(job)
            if why.code == "Priority":
                assert placement(self.state, job, event.at) is not None, (
                    f"{job.label} is said to fit, and does not"
                )

    def _check_taken(self, job: Job) -> None:
        """It waits for resources and that is all there is to say: then jobs have them."""
        state, shape = self.state, job.spec.shape
        if shape.cpus > state.machine.free_cpus or state.machine.gpu_trouble:
            return
        for index, gpu in state.machine.gpus.items():
            is_allowed = state.machine.allowed is None or index in state.machine.allowed
            if is_allowed and shape.gpu_type.lower() in gpu.model.lower():
                assert index in state.machine.holders or shape.gpu_memory_mib > gpu.memory_mib, (
                    f"{job.label} waits for GPU {index}, which no job has, and there is no blocker"
                )

    def _note_arrays(self, event: Submit) -> None:
        first = self.state.jobs.next_number - len(event.specs)
        for number, spec in enumerate(event.specs, first):
            if spec.array:
                self.arrays[number] = frozenset(parse_tasks(spec.array))

    def exists(self, key: JobKey) -> bool:
        """Whether there is or was such a job or task."""
        task = task_of(key)
        if task is not None:
            return task in self.arrays.get(number_of(key), ())
        return 0 < number_of(key) < self.state.jobs.next_number and number_of(key) not in self.unseen

    def _check_unknown(self, event: Submit | Update, error: NotFound) -> None:
        """A client is told that there is no such job: then there must be none."""
        named = set(getattr(event, "keys", ()))
        if isinstance(event, Submit):
            named |= {key for spec in event.specs for key in spec.parents}
        else:
            named |= named_parents(event.fields)
        active = isinstance(event, Submit) or all(self.state.jobs.is_active(key) for key in event.keys)
        assert not active or not all(self.exists(key) for key in named), f"{error.message}: but there is"

    def arrive(self) -> None:
        """Let all come who are to."""
        while self.state.arriving:
            self.apply(Arrive(at=self.clock.now(), most=PART))

    # ------------------------------------------------------------ the disk

    def commit(self) -> None:
        """The end of a turn."""
        keep_counts(self.changes, self.state)
        if self.changes:
            self.store.commit(self.changes)
            if self.disk is not None:
                self.disk.commit(self.changes)
        self.changes = Changes()
        self.state.jobs.ended.clear()
        self.twin.jobs.ended.clear()

    def restart(self) -> None:
        """The daemon dies and comes back: what it knows then is what it knew."""
        self.restarts += 1
        self.arrive()
        self.apply(Tick(at=self.clock.now()))
        self.arrive()  # children of jobs that began at the tick: after a restart they wait in the queue
        self.commit()
        self.state = self._reloaded()
        self.apply(known_gpus(self.state, self.clock.now()))
        self.commit()

    def lose_turn(self, commands: list[Callable[[], Event]]) -> None:
        """A commit fails: memory goes back to what the disk has, as if nothing had been said.

        A command builds its event just before its step, as in the daemon.
        """
        self.restarts += 1
        self.arrive()
        self.apply(Tick(at=self.clock.now()))
        self.arrive()
        self.commit()
        reference, arrays, twin = self.reference.copy(), dict(self.arrays), self._reloaded()
        for command in commands:
            self.apply(command())
        self.trace.append("that turn is lost")
        self.changes, self.reference, self.arrays = Changes(), reference, arrays
        self.state, self.twin = twin, twin
        self.state = self._reloaded()
        self.apply(known_gpus(self.state, self.clock.now()))
        self.commit()

    def _reloaded(self) -> State:
        self.trace.append("reload")
        fresh = self._rebuilt(self.store)
        assert_same(self.state, fresh, "memory and store differ")
        if self.disk is not None:
            fresh = self._rebuilt(self.disk)
            assert_same(self.state, fresh, "memory and disk differ")
        check(fresh, settled=False)  # the daemon's first event is a round
        return fresh

    def _rebuilt(self, store: Store) -> State:
        with mock.patch.object(daemon_clock, "now", self.clock.now):
            return reload(self.state, store)
