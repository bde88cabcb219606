"""All that the engine remembers. Rebuilt from the store by `restore`, never saved as a whole."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gflow.core.deps import Wait
from gflow.core.history import Batch, History
from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.model import Block, Gpu, Idle, Job, JobState
from gflow.core.policy import USUAL, Drained, Policy
from gflow.core.queue import GroupKey, ReadyQueue
from gflow.core.quotas import Ledger, exceeded
from gflow.core.reservations import Book, span_of
from gflow.core.shares import Shares

if TYPE_CHECKING:
    from gflow.core.promise import Promise

# How far back `@~N` reaches, per user.
RECENT = 100

# The reason of a running job that has been warned of its limit; it is saved, so a restart warns nobody twice.
WARNED = "Warned"


class State:
    """Active jobs and the machine. Final jobs live in the store only."""

    def __init__(self, *, cpus: int, memory_mib: int, policy: Policy = USUAL) -> None:
        self.policy = policy
        self.cpus, self.memory_mib = cpus, memory_mib
        self.free_cpus, self.free_memory_mib = cpus, memory_mib
        self.gpus: dict[int, Gpu] = {}
        # GPU indices that new jobs may get; None: all.
        self.allowed: frozenset[int] | None = policy.gpus
        # GPU index -> who else uses it: another user's daemon. Never given out.
        self.foreign: dict[int, str] = {}
        # GPU index -> why it gets no new jobs; MiB of it that tolerated processes of others use.
        self.blocked: dict[int, Block] = {}
        self.taken: dict[int, int] = {}
        # Why nobody can tell what GPUs there are (empty: they are known); and which card each number means,
        # as it was last kept for the next daemon.
        self.gpu_trouble = self.gpu_names = ""
        # UUID -> what is wrong with that card, kept until somebody has looked at it.
        self.faults: dict[str, str] = {}
        # GPU index -> when the last job left it (wall clock). Not kept: it is only told.
        self.freed_at: dict[int, float] = {}
        # GPU index -> the running jobs on it and the memory each declared; 0: has it alone.
        self.holders: dict[int, dict[JobKey, int]] = {}
        # Derived from the above: GPUs we may give out, those nobody has, those no job has alone.
        self.usable: set[int] = set()
        self.idle: set[int] = set()
        self.open: set[int] = set()

        # Jobs that do not use GPUs they have. Not kept: the next daemon looks for itself.
        self.unused: dict[JobKey, Idle] = {}

        # Where nothing more is to start, by people's word; and whether the daemon is about to leave.
        self.drained = Drained()
        self.leaving = False
        self.jobs: dict[JobKey, Job] = {}
        self.next_number = 1
        # A waiting job is in exactly one of: waits (for parents), later (for its time), ready.
        self.waits: dict[JobKey, Wait] = {}
        self.later: set[JobKey] = set()
        self.history = History()
        self.ready = ReadyQueue(
            self.history,
            by_length=policy.order == "shortest",
            use_history=policy.lengths == "history",
        )
        self.shares = Shares(policy.half_life_s)
        # What people may have and what they have; which GPUs are reserved.
        self.ledger, self.reserved = Ledger(), Book()
        # Starts that are promised to those who have waited too long, as of the latest round.
        self.promises: list[Promise] = []
        # Jobs that run, without the records of arrays.
        self.running: dict[JobKey, Job] = {}
        # What the expected end of each goes by.
        self.batches: dict[JobKey, Batch] = {}
        # Parent -> jobs that wait for it.
        self.children: dict[JobKey, set[JobKey]] = {}
        # Array -> its tasks that somebody waits for.
        self.awaited: dict[JobKey, set[JobKey]] = {}
        # Array -> its tasks that are jobs of their own and not final.
        self.tasks: dict[JobKey, set[JobKey]] = {}
        # Group -> how many of it run.
        self.group_running: Counter[int] = Counter()
        # uid -> how many active jobs that person has; an array is one, and so is each of its running tasks.
        self.of_person: Counter[int] = Counter()
        # uid -> that person's latest jobs, oldest first.
        self.recent: dict[int, deque[JobKey]] = {}
        # Jobs that ended since the last commit: out of `jobs`, not yet in the store.
        self.ended: dict[JobKey, Job] = {}
        # When something is due: (boot time, job, attempt) and (wall time, job). Stale entries are skipped.
        self.limits: list[tuple[float, JobKey, int]] = []
        self.begins: list[tuple[float, JobKey]] = []
        self.warnings: list[tuple[float, JobKey, int]] = []
        # The latest begin time that jobs in `ready` had: a clock before it has been set back.
        # What time it was last.
        self.latest_begin = self.wall = 0.0

    # ------------------------------------------------------------ the machine

    def see_gpus(self, gpus: Iterable[Gpu]) -> None:
        self.gpus = {gpu.index: gpu for gpu in sorted(gpus, key=lambda gpu: gpu.index)}
        self.recount()

    def restrict(self, allowed: frozenset[int] | None) -> None:
        self.allowed = allowed
        self.recount()

    @property
    def is_drained(self) -> bool:
        """Whether nothing at all may start."""
        return self.leaving or self.drained.everything is not None

    def closed(self, index: int) -> Block | None:
        """Why this GPU gets no new jobs, whoever found that out; None: it may get some."""
        if index in self.blocked:
            return self.blocked[index]
        if index in self.foreign:
            return Block("Unmanaged", self.foreign[index])
        if index in self.drained.gpus:
            return Block("Drained", self.drained.gpus[index])
        is_allowed = self.allowed is None or index in self.allowed
        return None if is_allowed else Block("Restricted", "")

    def recount(self) -> None:
        """Derive `idle` and `open` anew. O(GPUs)."""
        self.usable = usable = {index for index in self.gpus if self.closed(index) is None}
        self.idle = {index for index in usable if index not in self.holders}
        self.open = {index for index in usable if 0 not in self.holders.get(index, {}).values()}

    def book(self, job: Job) -> None:
        """Take the resources of a job that runs from now on."""
        shape = job.spec.shape
        self.free_cpus -= shape.cpus
        self.free_memory_mib -= shape.memory_mib
        self.regroup(None, job.spec.group)
        declared = shape.gpu_memory_mib if shape.shared else 0
        for index in job.gpu_ids:
            self.holders.setdefault(index, {})[job.key] = declared
            self.idle.discard(index)
            if not declared:
                self.open.discard(index)
        self.running[job.key] = job
        self.batches[job.key] = self.history.started(job)
        self.ledger.run(job)
        self.set_limit(job)

    def set_limit(self, job: Job) -> None:
        """Note when a running job's time is up, and when to warn it."""
        if job.spec.time_limit_s and job.started_boot is not None:
            due = job.started_boot + job.spec.time_limit_s
            heapq.heappush(self.limits, (due, job.key, job.attempt))
            if job.spec.warning[0] and job.reason != WARNED:
                heapq.heappush(self.warnings, (due - job.spec.warning[1], job.key, job.attempt))

    def unbook(self, job: Job, wall: float = 0.0) -> None:
        """Give them back."""
        shape = job.spec.shape
        del self.running[job.key]
        self.history.stopped(job, self.batches.pop(job.key))
        self.ledger.run(job, -1)
        self.shares.run(job.uid, -shape.gpus, wall)
        self.free_cpus += shape.cpus
        self.free_memory_mib += shape.memory_mib
        self.regroup(job.spec.group, None)
        self.unused.pop(job.key, None)
        for index in job.gpu_ids:
            holders = self.holders[index]
            del holders[job.key]
            if not holders:
                del self.holders[index]
                self.freed_at[index] = wall
            if index in self.usable:
                if not holders:
                    self.idle.add(index)
                if 0 not in holders.values():
                    self.open.add(index)

    def expected_end(self, job: Job, wall: float) -> float:
        """When a running job is expected to be over: not before now."""
        assert job.started_at is not None
        return max(wall, job.started_at + self.ready.length(job.spec.time_limit_s, self.batches[job.key]))

    def regroup(self, old: int | None, new: int | None) -> None:
        """A running job leaves one group and joins another."""
        if new is not None:
            self.group_running[new] += 1
        if old is not None:
            self.group_running[old] -= 1
            if not self.group_running[old]:
                del self.group_running[old]

    # ------------------------------------------------------------ the queue

    def add(self, job: Job) -> None:
        self.jobs[job.key] = job
        self.ledger.add(job)
        self.of_person[job.uid] += 1
        if job.task is not None:
            self.tasks.setdefault(job_key(job.number), set()).add(job.key)

    def drop(self, job: Job) -> None:
        """Forget a job that has become final."""
        del self.jobs[job.key]
        self.ledger.add(job, -1)
        self.of_person[job.uid] -= 1
        if not self.of_person[job.uid]:
            del self.of_person[job.uid]
        self.ended[job.key] = job
        self.history.learn(job)
        if job.task is not None:
            array = job_key(job.number)
            self.tasks[array].discard(job.key)
            if not self.tasks[array]:
                del self.tasks[array]

    def array_with(self, key: JobKey) -> Job | None:
        """The array in whose record this task still waits, or None."""
        task = task_of(key)
        if task is None or key in self.jobs:
            return None
        array = self.jobs.get(job_key(number_of(key)))
        if array is None or array.progress is None or array.stopping is not None:
            return None
        return array if task in array.progress.pending else None

    def is_active(self, key: JobKey) -> bool:
        """Whether this is a job, or a task that still waits in its array, and not final."""
        return key in self.jobs or self.array_with(key) is not None

    def outcome(self, key: JobKey) -> JobState | None:
        """How this ended, as far as memory knows what the store does not know yet."""
        if key in self.ended:
            return self.ended[key].state
        task, whole = task_of(key), job_key(number_of(key))
        array = self.jobs.get(whole) or self.ended.get(whole)
        if task is None or array is None or array.progress is None or task not in array.progress.pending:
            return None
        return array.stopping or (array.state if array.is_final else None)

    def admit(self, job: Job, wall: float, *, again: bool = False) -> GroupKey | None:
        """Put a queued job where it waits: for parents, for its time, or for resources (its group then).

        `again`: it was there before, and has waited since.
        """
        if job.key in self.waits:
            return None
        begin_at = job.begin_at
        if begin_at > wall:
            self.later.add(job.key)
            heapq.heappush(self.begins, (begin_at, job.key))
            return None
        self.latest_begin = max(self.latest_begin, begin_at)
        if not again:
            job.ready_at = wall
        return self.ready.add(job)

    def wait_again(self, job: Job, wall: float) -> None:
        """How long this job has waited so far is forgotten."""
        self.ready.remove(job)
        job.ready_at = wall
        self.ready.add(job)

    def postpone(self, wall: float) -> None:
        """After the clock was set back: jobs whose begin time is to come again wait for it again."""
        if wall >= self.latest_begin:
            return
        self.latest_begin = 0.0
        for job in [job for job in self.jobs.values() if job.begin_at and job in self.ready]:
            self.ready.remove(job)
            self.admit(job, wall, again=True)

    def wait_for(self, job: Job, wait: Wait) -> None:
        """`job` becomes ready only when `wait` is over."""
        self.waits[job.key] = wait
        for parent in wait.parents:
            self.children.setdefault(parent, set()).add(job.key)
            if task_of(parent) is not None:
                self.awaited.setdefault(job_key(number_of(parent)), set()).add(parent)

    def stop_waiting(self, job: Job) -> None:
        """Take a waiting job out of everything it waits in."""
        wait = self.waits.pop(job.key, None)
        for parent in wait.parents if wait else ():
            self.unlink(parent, job.key)
        self.later.discard(job.key)
        self.ready.remove(job)

    def unlink(self, parent: JobKey, child: JobKey) -> None:
        """`child` does not wait for `parent` any more."""
        self.children[parent].discard(child)
        if not self.children[parent]:
            self.take_children(parent)

    def take_children(self, parent: JobKey) -> list[JobKey]:
        """The jobs that wait for `parent`, in order: from now on they do not."""
        if task_of(parent) is not None and parent in self.children:
            array = job_key(number_of(parent))
            self.awaited[array].discard(parent)
            if not self.awaited[array]:
                del self.awaited[array]
        return sorted(self.children.pop(parent, ()))

    def is_capped(self, job: Job) -> bool:
        """Whether as many jobs of its group run as may."""
        cap = job.spec.max_concurrent
        return cap > 0 and self.group_running[job.spec.group] >= cap

    def over_quota(self, job: Job) -> str | None:
        """Which quota keeps this job from starting, in words; None: none does."""
        return exceeded(self.ledger, job)

    def barred(self, job: Job) -> frozenset[int]:
        """GPUs that are reserved for others before this job would be over."""
        if not self.reserved.live:
            return frozenset()
        return self.reserved.barred(job.user, self.wall, span_of(job, self.ready.expected_s(job)))

    def remember_recent(self, uid: int, key: JobKey) -> None:
        self.recent.setdefault(uid, deque(maxlen=RECENT)).append(key)

    # ------------------------------------------------------------ time

    def next_limit(self) -> float | None:
        """The boot time at which the next time limit is reached."""
        while self.limits:
            due, key, attempt = self.limits[0]
            job = self.jobs.get(key)
            if job and _runs_until(job, due, attempt):
                return due
            heapq.heappop(self.limits)
        return None

    def next_warning(self) -> float | None:
        """The boot time at which the next job is to be warned."""
        while self.warnings:
            due, key, attempt = self.warnings[0]
            job = self.jobs.get(key)
            if job and job.reason != WARNED and _runs_until(job, due + job.spec.warning[1], attempt):
                return due
            heapq.heappop(self.warnings)
        return None

    def next_alarm(self) -> float | None:
        """The boot time at which a limit or a warning is due."""
        due = [at for at in (self.next_limit(), self.next_warning()) if at is not None]
        return min(due, default=None)

    def next_promise(self) -> float | None:
        """The wall time at which the next promised start is due."""
        times = [one.until for one in self.promises if one.now < one.until < float("inf")]
        return min(times, default=None)

    def next_begin(self) -> float | None:
        """The wall time at which the next job may begin."""
        while self.begins:
            due, key = self.begins[0]
            if key in self.later and self.jobs[key].begin_at == due:
                return due
            heapq.heappop(self.begins)
        return None


def next_look(state: State) -> float | None:
    """The wall time at which somebody may begin, or is not to start as promised."""
    times = [state.next_begin(), state.next_promise(), state.reserved.next_end]
    return min((at for at in times if at is not None), default=None)


def _runs_until(job: Job, due: float, attempt: int) -> bool:
    """Whether an entry of `limits` still speaks of this job."""
    return (
        job.state is JobState.RUNNING
        and job.attempt == attempt
        and job.stopping is None
        and job.started_boot is not None
        and job.started_boot + job.spec.time_limit_s == due
    )


def restore(
    state: State,
    jobs: Iterable[Job],
    outcomes: dict[JobKey, JobState],
    recent: Iterable[tuple[int, JobKey]],
    next_number: int,
    wall: float,
    finished: Iterable[Job] = (),
) -> None:
    """Fill an empty state from what the store has. `outcomes`: how final parents ended."""
    state.next_number = next_number
    state.history.pass_time(wall)
    state.history.learn_all(finished)
    for uid, key in recent:
        state.remember_recent(uid, key)
    for job in sorted(jobs, key=lambda job: job.key):
        state.add(job)
    for job in state.jobs.values():
        if job.state is JobState.RUNNING:
            if not job.is_array:
                state.book(job)
                state.shares.resume(job.uid, job.spec.gpus)
            continue
        if job.spec.parents:
            wait = Wait.of(job.spec, outcomes.get)
            if not wait.is_over:
                state.wait_for(job, wait)
        if job.state is JobState.QUEUED:
            state.admit(job, wall, again=True)
