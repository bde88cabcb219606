"""A second opinion on every decision, from the effects alone and by other means than the engine's.

The reference model records the starts and stops of the engine, and compares each of them with
plain rules: no tables that could be stale, no queue, no grouping; it recounts everything.
"""

from __future__ import annotations

from typing import NamedTuple

from gflow.core.effects import Accepted, Effect, Save, Start, Stop, Warn
from gflow.core.events import (
    Cancel,
    Claim,
    Drain,
    Event,
    Exited,
    GpusSeen,
    Hold,
    LeasesSeen,
    Reclaimed,
    Release,
    Restrict,
    Tick,
    Update,
)
from gflow.core.ids import JobKey, job_key, label, number_of, parse_label, task_of
from gflow.core.model import Gpu, Job, JobState, Moment, Spec
from gflow.core.reasons import ReasonKind
from gflow.core.resources import Shape
from gflow.core.state.state import State

MEMORY_SLACK = 1.02


class Run(NamedTuple):
    """An attempt that lives."""

    attempt: int
    shape: Shape
    gpu_ids: tuple[int, ...]
    started_boot: float


class Limit(NamedTuple):
    """How long a job may run, and how it is warned before."""

    seconds: int
    signal: int
    before: int


class ReferenceModel:
    """What runs, what ended, what people said; filled from events and effects only."""

    def __init__(self, cpus: int, memory_mib: int) -> None:
        self.cpus = cpus
        self.memory_mib = memory_mib
        self.gpus: dict[int, Gpu] = {}
        self.allowed: set[int] | None = None
        self.drained = self.reclaimed = False
        # Until when nothing starts, because a start failed for want of something: boot time.
        self.stalled_until, self.stalled = 0.0, False
        self.drained_gpus: set[int] = set()
        self.foreign: set[int] = set()
        self.blocked: set[int] = set()
        self.taken: dict[int, int] = {}
        self.runs: dict[JobKey, Run] = {}
        self.attempts: dict[JobKey, int] = {}
        self.stopping: set[JobKey] = set()
        # Running jobs that were warned, and the limit they were warned of.
        self.warned: dict[JobKey, Limit] = {}
        self.outcomes: dict[JobKey, JobState] = {}
        # Jobs that have started, and arrays of which all tasks have.
        self.begun: set[JobKey] = set()
        # Arrays that start no more tasks.
        self.winding_down: set[JobKey] = set()
        self.held: set[JobKey] = set()
        self.cancelled: set[JobKey] = set()
        # What the attempts of each job used: CPU time and peak of each.
        self.usage: dict[JobKey, tuple[tuple[int, int], ...]] = {}
        # Whether there was a start reservation after the step before: then order is not all.
        self.reserved = False
        # Jobs that pause before they are tried again, until when.
        self.pauses: dict[JobKey, float] = {}

    def copy(self) -> ReferenceModel:
        other = ReferenceModel(self.cpus, self.memory_mib)
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if hasattr(value, "copy") else value)
        return other

    # ------------------------------------------------------------ booking

    def take(self, event: Event, effects: list[Effect], state: State, records: set[JobKey]) -> None:
        """One step that was taken: book it, and hold every start and stop against the rules.

        `records`: what the event was about, from before the step (`records_of`).
        """
        run = self.runs.get(event.key) if isinstance(event, Exited) else None
        self._hear(event, state, records)
        self._hear_of_machine(event)
        self.stalled = bool(state.machine.stalled)
        if isinstance(event, Tick):
            self._check_limits(event.at, effects, state)
            self._check_stall(event.at)
        ended = set()
        started = []
        for effect in effects:
            if isinstance(effect, Save):
                self._saved(effect.job, ended)
                if isinstance(event, Exited) and effect.job.key == event.key:
                    self._check_retry(effect.job, event)
                    _check_run_time(effect.job, run, event.at)
            elif isinstance(effect, Start):
                started.append(self._started(effect, event.at, state))
            elif isinstance(effect, Stop):
                assert self.runs[effect.key].attempt == effect.attempt, f"{label(effect.key)} is not running"
                if state.jobs[effect.key].stopping is JobState.QUEUED:
                    self._check_way(state.jobs[effect.key], state)
                self.stopping.add(effect.key)
        self._check_order(started, state)
        _check_singletons(effects, state)
        for effect in effects:
            if isinstance(effect, Save):
                self._check_usage(effect.job)

    def _hear(self, event: Event, state: State, records: set[JobKey]) -> None:
        match event:
            case Exited():
                self._hear_exit(event, state)
            case Update(fields=fields):
                if "begin_at" in fields:  # a new begin time ends the retry delay
                    self._forget_pauses(records)
                # Another limit has another warning.
                changed = {k for k in self.warned if self.warned[k] != _limit(state.jobs[k].spec)}
                self.warned = {k: limit for k, limit in self.warned.items() if k not in changed}
            case Hold():
                self.held |= records
            case Release(begin_at=begin_at):
                self.held -= records
                if begin_at is not None:
                    self._forget_pauses(records)
            case (
                Cancel(keys=keys) | Claim(action=Cancel(keys=keys))
            ):  # from then on, not only when it is done
                self.cancelled |= {key for key in keys if _is_there(key, state)}
            case Claim(action=Hold(keys=keys)):
                self.held |= set(keys)

    def _hear_exit(self, event: Exited, state: State) -> None:
        key = event.key
        if key not in self.runs or self.runs[key].attempt != event.attempt:
            return
        self.usage[key] = (*self.usage.get(key, ()), (event.cpu_ms, event.peak_kib))
        del self.runs[key]
        self.stopping.discard(key)
        self.warned.pop(key, None)
        if event.problem.kind is ReasonKind.DEFERRED:
            assert state.deadlines.resume_at is not None, "a deferred start is never retried"
            self.stalled_until = state.deadlines.resume_at

    def _forget_pauses(self, keys: set[JobKey]) -> None:
        self.pauses = {key: until for key, until in self.pauses.items() if key not in keys}

    def _hear_of_machine(self, event: Event) -> None:
        match event:
            case GpusSeen(gpus=gpus, blocked=blocked, taken=taken):
                self.gpus = {gpu.index: gpu for gpu in gpus}
                self.blocked, self.taken = set(blocked), taken
            case LeasesSeen(foreign=foreign):
                self.foreign = set(foreign)
            case Reclaimed(why=why):
                self.reclaimed = bool(why)
            case Drain(on=on, gpus=None):
                self.drained, self.reclaimed = on, self.reclaimed and on
            case Drain(on=on, gpus=gpus):
                self.drained_gpus = self.drained_gpus | set(gpus) if on else self.drained_gpus - set(gpus)
            case Restrict(allowed=allowed):
                self.allowed = None if allowed is None else set(allowed)

    def _saved(self, job: Job, ended: set[JobKey]) -> None:
        if job.key in ended:
            return
        assert job.key not in self.outcomes, f"job {job.label} was final and is changed"
        if job.is_final:
            ended.add(job.key)
            self.outcomes[job.key] = job.state
            assert job.key not in self.runs, f"job {job.label} is over and its processes live"
        if job.progress is not None and job.state is JobState.RUNNING:
            self.begun.add(job.key)
        if job.progress is not None and job.stopping is not None:
            self.winding_down.add(job.key)
        if job.state is JobState.HOLD:
            self.held.add(job.key)
        if job.retry_boot:
            self.pauses[job.key] = job.retry_boot
        elif job.state is not JobState.RUNNING or job.key in self.runs:
            self.pauses.pop(job.key, None)

    def _check_retry(self, job: Job, event: Exited) -> None:
        """A job is tried again exactly after the ends it named, and pauses twice as long each time."""
        spec = job.spec
        if str(job.reason) == "Retry" and job.state is JobState.QUEUED:
            delay = spec.retry_delay_s
            pause = min(delay * 2 ** (job.retries - 1), max(delay, 3600))
            until = (event.at.boot + pause, event.at.wall + pause) if pause else (0.0, 0.0)
            assert (job.retry_boot, job.retry_at) == until, f"{job.label} pauses wrongly"
        elif job.state in (JobState.FAILED, JobState.TIMEOUT) and job.retries < spec.max_retries:
            wanted = set(spec.retry_on or ("failed",))
            assert "any" not in wanted, f"{job.label} ended and wanted to be tried again"
            ended = "timeout" if job.state is JobState.TIMEOUT else "failed"
            assert ended not in wanted, f"{job.label} {ended} and wanted to be tried again"
            if ended == "failed" and event.code is not None and not event.problem and not event.signal:
                assert not wanted & {"exit", f"exit:{event.code}"}, f"{job.label} left with {event.code}"

    def _started(self, effect: Start, at: Moment, state: State) -> Job:
        job = state.jobs[effect.key]
        name, spec, shape = job.label, job.spec, job.spec.shape
        assert job.state is JobState.RUNNING, f"{name} starts and is {job.state.value}"
        assert job.attempt == effect.attempt == self.attempts.get(job.key, 0) + 1, f"{name} starts twice"
        assert job.key not in self.runs, f"{name} starts while it runs"
        self._check_allowed(job, at)
        self._check_cap(spec, state, name)
        chosen = job.gpu_ids
        assert len(set(chosen)) == len(chosen) == shape.gpus, f"{name} has the wrong number of GPUs"
        for index in chosen:
            assert self._has_room(index, shape), f"{name} starts on GPU {index}, which it may not have"
        self.attempts[job.key] = effect.attempt
        self.begun.add(job.key)
        self.runs[job.key] = Run(effect.attempt, shape, chosen, at.boot)
        cpus, memory = self._used()
        assert cpus <= self.cpus and memory <= self.memory_mib, f"{name} starts on a full machine"
        return job

    # ------------------------------------------------------------ rules

    def _check_allowed(self, job: Job, at: Moment) -> None:
        """Nothing a person said forbids this start."""
        name, array = job.label, job_key(job.number)
        assert not self.drained, f"{name} starts on a drained machine"
        assert not self.reclaimed, f"{name} starts on a machine that is taken away"
        assert at.boot >= self.stalled_until, f"{name} starts {self.stalled_until - at.boot} s too early"
        assert job.key not in self.held, f"{name} starts and is held"
        assert job.attempt > 1 or array not in self.held, f"{name} starts and its array is held"
        assert not {job.key, array} & self.cancelled, f"{name} starts and was cancelled"
        assert job.spec.begin_at <= at.wall, f"{name} starts {job.spec.begin_at - at.wall} s too early"
        assert self.pauses.pop(job.key, 0.0) <= at.boot, f"{name} is tried again too early"
        assert self.is_met(job.spec), f"{name} starts and its dependencies are not met"

    def is_met(self, spec: Spec) -> bool:
        """Whether the parents allow a start."""
        every = all(self.outcomes.get(key) is JobState.FINISHED for key in spec.depends_on)
        some = any(self.outcomes.get(key) is JobState.FINISHED for key in spec.depends_any)
        ended = all(self._has_ended(key) for key in spec.depends_end + spec.depends_earlier)
        failed = all(
            self._has_ended(key) and self.outcomes.get(key) is not JobState.FINISHED
            for key in spec.depends_failure
        )
        started = all(self._has_ended(key) or key in self.begun for key in spec.depends_start)
        return every and (some or not spec.depends_any) and ended and failed and started

    def _has_ended(self, key: JobKey) -> bool:
        """Whether this job is final, or a task that its array will never start."""
        array = job_key(number_of(key))
        never = array in self.outcomes or array in self.winding_down
        return key in self.outcomes or (task_of(key) is not None and key not in self.begun and never)

    def is_vain(self, spec: Spec) -> bool:
        """Whether the parents can never allow a start. (Tasks that never start are not counted.)"""
        ends = [self.outcomes.get(key) for key in spec.depends_any]
        none_succeeded = bool(ends) and None not in ends and JobState.FINISHED not in ends
        none_failed = any(self.outcomes.get(key) is JobState.FINISHED for key in spec.depends_failure)
        return (
            none_succeeded
            or none_failed
            or any(
                self.outcomes.get(key, JobState.FINISHED) is not JobState.FINISHED for key in spec.depends_on
            )
        )

    def _check_cap(self, spec: Spec, state: State, name: str) -> None:
        assert not self._is_capped(spec, state), f"{name} starts beyond its group's cap"

    def _is_capped(self, spec: Spec, state: State) -> bool:
        if not spec.max_concurrent:
            return False
        beside = sum(state.jobs[key].spec.group == spec.group for key in self.runs)
        return beside >= spec.max_concurrent

    def _has_room(self, index: int, shape: Shape) -> bool:
        """Whether a job of this shape may have this GPU beside those that have it."""
        gpu = self.gpus.get(index)
        forbidden = self.foreign | self.blocked | self.drained_gpus
        if gpu is None or index in forbidden or (self.allowed is not None and index not in self.allowed):
            return False
        most = (gpu.memory_mib - self.taken.get(index, 0)) * MEMORY_SLACK
        if shape.gpu_type.lower() not in gpu.model.lower() or shape.gpu_memory_mib > most:
            return False
        beside = [run.shape for run in self.runs.values() if index in run.gpu_ids]
        if not shape.shared:
            return not beside
        together = sum(other.gpu_memory_mib for other in beside) + shape.gpu_memory_mib
        whole = gpu.memory_mib * MEMORY_SLACK - self.taken.get(index, 0)
        return all(other.shared for other in beside) and together <= whole

    def _used(self) -> tuple[int, int]:
        shapes = [run.shape for run in self.runs.values()]
        return sum(shape.cpus for shape in shapes), sum(shape.memory_mib for shape in shapes)

    def _fits(self, shape: Shape) -> bool:
        if self.drained or self.reclaimed or self.stalled:
            return False
        cpus, memory = self._used()
        if cpus + shape.cpus > self.cpus or memory + shape.memory_mib > self.memory_mib:
            return False
        return sum(self._has_room(index, shape) for index in self.gpus) >= shape.gpus

    def _check_limits(self, at: Moment, effects: list[Effect], state: State) -> None:
        """A look at the clock stops exactly the jobs whose time is up on the boot clock, and warns before."""
        over, nearly = [], []
        for key, run in self.runs.items():
            limit = _limit(state.jobs[key].spec)
            if not limit.seconds or key in self.stopping:
                continue
            end = run.started_boot + limit.seconds
            if end <= at.boot:
                over.append(key)
            if limit.signal and end - limit.before <= at.boot and key not in self.warned:
                nearly.append(key)
                self.warned[key] = limit
        stops = [effect.key for effect in effects if isinstance(effect, Stop)]
        stopped = sorted(key for key in stops if state.jobs[key].stopping is not JobState.QUEUED)
        assert stopped == sorted(over), f"limits: stopped {stopped}, over {over}"
        warned = sorted(effect.key for effect in effects if isinstance(effect, Warn))
        assert warned == sorted(nearly), f"limits: warned {warned}, nearly over {nearly}"

    def _check_stall(self, at: Moment) -> None:
        """After a look at the clock, starts that failed are tried again exactly if their pause is over."""
        assert self.stalled == (at.boot < self.stalled_until), "starts are tried again at the wrong time"
        if not self.stalled:  # another boot has another clock
            self.stalled_until = 0.0

    def _check_way(self, job: Job, state: State) -> None:
        """Only preemptible jobs are preempted, for a job of higher precedence that can then start."""
        name, spec = job.label, job.spec
        number = parse_label(str(job.reason).removeprefix("Preempted: "))
        if number is None:  # the cloud takes the machine away
            assert spec.requeue or spec.preemptible, f"{name} goes back and never said it would"
            return
        whom = state.jobs[number]
        asked = whom.spec
        assert spec.preemptible, f"{name} makes way and never said it would"
        assert job.key not in self.stopping, f"{name} makes way twice"
        assert whom.state is JobState.QUEUED, f"{name} makes way for {whom.label}, which does not wait"
        before = asked.priority > spec.priority
        assert before or (asked.priority == spec.priority and not asked.preemptible), (
            f"{name} makes way for {whom.label}, which does not come before it"
        )
        # GPUs that are reserved for others fit, as far as is known here.
        fits = self._fits(asked.shape) and not state.reserved.barred(whom, state.start_reservations.at.wall)
        assert not fits, f"{name} makes way for {whom.label}, which fits"
        rest = {k: run for k, run in self.runs.items() if not state.jobs[k].stopping}
        runs, self.runs = self.runs, rest
        assert self._fits(asked.shape), f"{name} makes way for {whom.label}, which does not fit all the same"
        self.runs = runs

    def _check_usage(self, job: Job) -> None:
        """A job used what its attempts did; an array, what the tasks did that are over."""
        whose = [job.key]
        if job.is_array:
            whose = [key for key in self.outcomes if number_of(key) == job.number]
        used = [attempt for key in whose for attempt in self.usage.get(key, ())]
        cpu_ms, peak_kib = sum(cpu for cpu, _ in used), max((peak for _, peak in used), default=0)
        assert (job.cpu_ms, job.peak_kib) == (cpu_ms, peak_kib), f"{job.label} did not use that"

    def _check_order(self, started: list[Job], state: State) -> None:
        """No job starts while one of the same shape and higher priority waits and could have started."""
        was_reserved, self.reserved = self.reserved, bool(state.start_reservations.entries)
        if not started or was_reserved or self.reserved or state.claimed:
            return
        for group in state.ready.groups.values():
            key = group.key
            for job in started:
                passed = key.shape == job.spec.shape and key.priority > job.spec.priority
                if all(job.key in state.jobs[one].spec.depends_start for one in group.members):
                    continue  # they have waited for this start
                assert not passed or key.max_concurrent, f"{job.label} starts before {group.members}"

    # ------------------------------------------------------------ after every step

    def check(self, state: State, event: Event) -> None:
        """Everything that waits, waits for a reason that is true."""
        assert state.machine.free_cpus >= 0 and state.machine.free_memory_mib >= 0, (
            "the machine is overbooked"
        )
        alive = {k for k, job in state.jobs.items() if job.state is JobState.RUNNING and not job.is_array}
        assert alive == self.runs.keys(), "what runs is not what was started"
        ready = {key for group in state.ready.groups.values() for key in group.members}
        fits: dict[tuple[object, ...], bool] = {}
        for job in state.jobs.values():
            if job.state is JobState.QUEUED:
                self._check_waiting(job, state, event)
                is_due = max(job.spec.begin_at, job.retry_at) <= event.at.wall
                if job.key in ready and is_due and not state.claimed:
                    free = not self._must_yield(job, state)
                    assert not free or not self._could_start(job, state, fits), (
                        f"{job.label} could start and does not"
                    )
            if job.state is not JobState.RUNNING and job.key not in state.arriving:
                vain = self.is_vain(job.spec) and not job.spec.no_auto_cancel
                assert not vain, f"{job.label} waits in vain"

    @staticmethod
    def _must_yield(job: Job, state: State) -> bool:
        """Whether a job has a start reservation that this one must not delay: see test_start_reservations."""
        first = state.start_reservations.entries[0] if state.start_reservations.entries else None
        return (
            first is not None
            and job.key != first.key
            and any(p.blocks(state.ready.place_of(job)) for p in state.start_reservations.entries)
        )

    def _check_waiting(self, job: Job, state: State, event: Event) -> None:
        met = self.is_met(job.spec)
        if job.key in state.arriving:  # it will be told
            return
        assert met == (job.key not in state.dependencies.waits), f"{job.label} is wrong about its parents"
        if met and isinstance(event, Tick):
            late = job.spec.begin_at > event.at.wall or job.retry_boot > event.at.boot
            assert late == (job.key in state.deadlines.later), f"{job.label} is wrong about its begin time"

    def _could_start(self, job: Job, state: State, known: dict[tuple[object, ...], bool]) -> bool:
        """Whether nothing but the engine keeps this job from starting. `known`: answers of this step."""
        spec = job.spec
        kind = (spec.shape, spec.group, spec.max_concurrent)
        if kind not in known:
            known[kind] = not self._is_capped(spec, state) and self._fits(spec.shape)
        return known[kind]


def _check_singletons(effects: list[Effect], state: State) -> None:
    """A new singleton waits for every earlier active job of its name and user."""
    accepted = [key for effect in effects if isinstance(effect, Accepted) for key in effect.keys]
    for job in filter(None, map(state.jobs.get, accepted)):
        if job.spec.singleton and job.spec.shared_name:
            earlier = {
                other.key
                for other in state.jobs.values()
                if other.task is None and other.key < job.key and other.uid == job.uid
                if other.spec.shared_name == job.spec.shared_name
            }
            assert earlier <= set(job.spec.depends_earlier), f"singleton {job.label} forgets {earlier}"


def _check_run_time(job: Job, run: Run | None, at: Moment) -> None:
    """A job that ended ran for as long as the boot clock says, whatever the wall clock showed."""
    if job.is_final and run is not None:
        assert job.ran_s == max(0.0, at.boot - run.started_boot), f"{job.label} did not run for so long"


def _is_there(key: JobKey, state: State) -> bool:
    """Whether this number was given out, and not to a job that is still hidden."""
    number = number_of(key)
    hidden = any(
        one.first <= number < one.first + one.count and not one.is_closed for one in state.open.values()
    )
    return number < state.jobs.next_number and not hidden


def _limit(spec: Spec) -> Limit:
    return Limit(spec.time_limit_s, *spec.warning)


def records_of(event: Event, state: State) -> set[JobKey]:
    """What an event is about, before it: what people do to a waiting task, they do to its array."""
    return {
        job_key(number_of(key)) if task_of(key) is not None and key not in state.jobs else key
        for key in getattr(event, "keys", ())
    }


def find_cycle(state: State) -> list[str] | None:
    """Jobs that wait for each other in a circle, so that none of them ever starts."""
    # A job's start waits for its parents' ends; its end, for its start; an array's, for its tasks' too.
    done: set[tuple[str, JobKey]] = set()
    for key in state.dependencies.waits:
        path: list[tuple[str, JobKey]] = []
        if _leads_to_itself(state, ("start", key), path, done):
            return [f"{what} of {label(job)}" for what, job in path]
    return None


def _leads_to_itself(
    state: State, node: tuple[str, JobKey], path: list[tuple[str, JobKey]], done: set[tuple[str, JobKey]]
) -> bool:
    if node in path:
        return True
    if node in done:
        return False
    path.append(node)
    if any(_leads_to_itself(state, after, path, done) for after in _waits_for(state, node)):
        return True
    done.add(path.pop())
    return False


def _waits_for(state: State, node: tuple[str, JobKey]) -> list[tuple[str, JobKey]]:
    what, key = node
    if what == "start":
        wait = state.dependencies.waits.get(key)
        return [("end", parent) for parent in sorted(wait.parents)] if wait else []
    if key not in state.jobs:
        return [("start", job_key(number_of(key)))]  # a task that waits in its array
    return [("start", key), *(("end", task) for task in sorted(state.jobs.tasks.get(key, ())))]
