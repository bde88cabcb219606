"""The engine's state. Rebuilt from the store by `restore`, never stored as a whole."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from gflow.core.forecast.calibration import EtaCalibration
from gflow.core.ids import TASK_MASK, JobKey, job_key, number_of, task_of
from gflow.core.model import LOCAL, Idle, Job, JobState, Moment
from gflow.core.policy import USUAL, Policy
from gflow.core.resources import INFINITE
from gflow.core.state.deadlines import Alarms
from gflow.core.state.dependencies import Wait
from gflow.core.state.end_times import EndingJob, EndTimes
from gflow.core.state.fair_share import Shares
from gflow.core.state.machine import Machine
from gflow.core.state.queue import ReadyQueue
from gflow.core.state.queue_index import Group
from gflow.core.state.quotas import QuotaUsage, exceeded
from gflow.core.state.reservations import ReservationTable, hard_s
from gflow.core.state.runtime_estimates import Batch, History
from gflow.core.transitions import QUEUED, RUNNING

if TYPE_CHECKING:
    from gflow.core.state.start_reservations import StartReservation
    from gflow.core.state.submissions import Opened

# How far back `@~N` reaches, per user.
RECENT = 100
# Bulk work is done to at most this many jobs in one turn of the loop: about 5 ms.
PART = 100
NO_GPUS: frozenset[int] = frozenset()
# By the parents that must all succeed, and those of which one must.
Waits = dict[tuple[tuple[JobKey, ...], tuple[JobKey, ...]], Wait]


class State:
    """Active jobs and the machine. Final jobs live in the store only."""

    def __init__(self, *, cpus: int, memory_mib: int, policy: Policy = USUAL) -> None:
        self.policy = policy
        self.machine = Machine(cpus, memory_mib, policy.gpus)
        # Jobs that do not use their GPUs. Not stored: the next daemon finds out itself.
        self.unused: dict[JobKey, Idle] = {}
        # Killed jobs that are still alive, with the process that is. Not stored: shims tell the next daemon
        # too.
        self.stuck: dict[JobKey, str] = {}

        self.jobs: dict[JobKey, Job] = {}
        self.next_number = 1
        # A waiting job is in exactly one of: waits (for parents), later (for its begin time or a retry),
        # ready. A job of another target, instead of in ready: in outbound (pending hand-over), then in abroad
        # (remote).
        self.waits: dict[JobKey, Wait] = {}
        self.later: set[JobKey] = set()
        # A remote job stays in `abroad` while it runs: no resources of this machine are booked for it. A job
        # that races is in `ready` as well, until it starts here or there.
        self.outbound, self.abroad = set[JobKey](), set[JobKey]()
        # Jobs in `ready` for which it has not been decided yet whether they overflow to another target.
        self.undecided = set[JobKey]()
        self.history = History()
        self.ready = ReadyQueue(
            self.history,
            by_length=policy.order == "shortest",
            use_history=policy.lengths == "history",
        )
        self.shares = Shares(policy.half_life_s)
        # Quotas and their usage; GPU reservations.
        self.ledger, self.reserved = QuotaUsage(policy.quotas), ReservationTable()
        # Start reservations of jobs that have waited long enough, as of the latest round.
        self.start_reservations: list[StartReservation] = []
        # Outcomes of earlier forecasts.
        self.foretold = EtaCalibration()
        # Jobs that run here, without the records of arrays.
        self.running: dict[JobKey, Job] = {}
        # The batch of each, for its runtime estimate; and their expected ends (see `ends`).
        self.batches: dict[JobKey, Batch] = {}
        self._end_times = EndTimes()
        # Running jobs that may be preempted; those that are being preempted -> the job that needs their GPUs.
        self.preemptible: set[JobKey] = set()
        self.yielding: dict[JobKey, JobKey] = {}
        # Parent -> the Waits on it, by identity. Jobs with the same parents share a Wait, so that m jobs with
        # n parents take m + n links.
        self.children: dict[JobKey, dict[int, Wait]] = {}
        # Array -> its tasks that are parents of waiting jobs.
        self.awaited: dict[JobKey, set[JobKey]] = {}
        # Array -> its tasks that are jobs of their own and not final.
        self.tasks: dict[JobKey, set[JobKey]] = {}
        # Group id -> how many of its jobs run.
        self.group_running: Counter[int] = Counter()
        # uid -> number of the user's active jobs; an array counts as one, and so does each running task.
        self.of_person: Counter[int] = Counter()
        # uid -> the user's latest jobs, oldest first.
        self.recent: dict[int, deque[JobKey]] = {}
        # Staged submissions, by their first number; see `core.lifecycle.staged_submit`.
        self.open: dict[int, Opened] = {}
        # Jobs that have yet to enter the queue, some in each turn: those of a staged submission that is
        # closed (its first number), and those whose last parent has ended (0).
        self.arriving: dict[JobKey, int] = {}
        # Jobs of a bulk cancel, hold or update that is not finished: they do not start.
        self.claimed: set[JobKey] = set()
        # How many children one ended job may release or cancel in its own turn.
        self.part = PART
        # Jobs that ended since the last commit: no longer in `jobs`, not yet in the store.
        self.ended: dict[JobKey, Job] = {}
        self.alarms = Alarms(self.jobs, self.later)
        # The latest begin time that has passed: if the wall clock is before it, it has been set back.
        self.latest_begin = 0.0
        # The time of the latest round, on the wall clock and on the boot clock.
        self.wall = self.now = 0.0

    # ------------------------------------------------------------ running jobs

    def book(self, job: Job, batch: Batch | None = None) -> None:
        """Book the resources of a job that starts. `batch`: that of its runtime estimate, if known."""
        key, spec = job.key, job.spec
        self.machine.take(job)
        self.regroup(None, spec.group)
        self.running[key] = job
        self.batches[key] = self.history.started(job, batch)
        if spec.preemptible:
            self.preemptible.add(key)
        self.note_stop(job)
        self.ledger.run(job)
        self.alarms.set_limit(job)

    def unbook(self, job: Job, now: float = 0.0) -> None:
        """Release the resources of a job. `now`: on the boot clock."""
        key, spec = job.key, job.spec
        del self.running[key]
        self.history.stopped(job, self.batches.pop(key))
        self._end_times.remove(key)
        self.preemptible.discard(key)
        self.yielding.pop(key, None)
        self.ledger.run(job, -1)
        self.shares.run(job.uid, -spec.gpus, now)
        self.machine.give_back(job, now)
        self.regroup(spec.group, None)
        self.unused.pop(key, None)
        self.stuck.pop(key, None)

    def send(self, job: Job) -> None:
        """Note that another target has the job from now on."""
        self.outbound.discard(job.key)
        self.abroad.add(job.key)
        if not job.is_array:
            self.regroup(None, job.spec.group)

    def keep(self, job: Job, gpu_ids: tuple[int, ...]) -> None:
        """Book these GPUs for a remote job that is being withdrawn: it starts on them if that succeeds."""
        assert job.abroad is not None
        self.leave_queue(job)
        job.abroad = msgspec.structs.replace(job.abroad, kept=gpu_ids)
        self.machine.take(msgspec.structs.replace(job, gpu_ids=gpu_ids))

    def leave_race(self, job: Job, now: float) -> bool:
        """Remove a racing job from the queue here; whether that frees GPUs or a reservation."""
        had_reservation = any(reservation.key == job.key for reservation in self.start_reservations)
        self.leave_queue(job)
        if job.abroad is None or job.abroad.kept is None:
            return had_reservation
        self.machine.give_back(msgspec.structs.replace(job, gpu_ids=job.abroad.kept), now)
        job.abroad = msgspec.structs.replace(job.abroad, kept=None)
        return True

    def fetch(self, job: Job) -> None:
        """Note that the other target no longer has the job."""
        self.abroad.discard(job.key)
        job.abroad = None
        if not job.is_array:
            self.regroup(job.spec.group, None)

    def expected_end(self, job: Job, now: float) -> float:
        """The expected end of a running job, on the boot clock: not before now."""
        assert job.started_boot is not None
        return max(now, job.started_boot + self.ready.length(job.spec.time_limit_s, self.batches[job.key]))

    def set_end(self, job: Job) -> None:
        """Update the expected end of a job that runs here. A job that is being stopped ends at once."""
        if job.key not in self.running:  # a remote job holds no resources here
            return
        self._end_times.put(job, 0.0 if job.stopping else self.expected_end(job, 0.0))

    def note_stop(self, job: Job) -> None:
        """Note whether a running job is being stopped, and for which job it is preempted, if it is."""
        self.set_end(job)
        if job.stopping is QUEUED and (whom := job.reason.job):
            self.yielding[job.key] = whom
        else:
            self.yielding.pop(job.key, None)

    def is_stopping(self, key: JobKey) -> bool:
        """Whether this job runs here and is being stopped."""
        return key in self.running and self.running[key].stopping is not None

    def note_preemptible(self, job: Job) -> None:
        """Note whether a job that runs here may be preempted."""
        if job.spec.preemptible and job.key in self.running:
            self.preemptible.add(job.key)
        else:
            self.preemptible.discard(job.key)

    def ends(self) -> list[tuple[float, JobKey, EndingJob]]:
        """Expected ends of the running jobs, soonest first. They may lie in the past."""
        if self.history.moved:
            moved, self.history.moved = self.history.moved, set()
            for batch in moved:
                for key in batch.starts:
                    self.set_end(self.running[key])
        return self._end_times.entries

    def regroup(self, old: int | None, new: int | None) -> None:
        """Move a running job from one group to another; None: from none, or to none."""
        if new is not None:
            self.group_running[new] = self.group_running.get(new, 0) + 1
        if old is not None:
            left = self.group_running[old] - 1
            if left:
                self.group_running[old] = left
            else:
                del self.group_running[old]

    # ------------------------------------------------------------ the queue

    def add(self, job: Job) -> None:
        self.jobs[job.key] = job
        self.ledger.add(job)
        self.count_person(job.uid, 1)
        if job.key & TASK_MASK:
            self.tasks.setdefault(job_key(job.number), set()).add(job.key)

    def drop(self, job: Job) -> None:
        """Forget a job that has become final."""
        key = job.key
        del self.jobs[key]
        self.ledger.add(job, -1)
        self.count_person(job.uid, -1)
        self.ended[key] = job
        self.history.learn(job)
        if key & TASK_MASK:
            array = job_key(job.number)
            self.tasks[array].discard(job.key)
            if not self.tasks[array]:
                del self.tasks[array]

    def count_person(self, uid: int, more: int) -> None:
        """Add to the number of a user's active jobs."""
        now = self.of_person.get(uid, 0) + more
        if now:
            self.of_person[uid] = now
        else:
            del self.of_person[uid]

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
        """Whether this is a job that is not final, or a task that still waits in its array."""
        return key in self.jobs or self.array_with(key) is not None

    def outcome(self, key: JobKey) -> JobState | None:
        """How this job ended, if that is not in the store yet; None: it has not ended, or it is."""
        if key in self.ended:
            return self.ended[key].state
        task, array_key = task_of(key), job_key(number_of(key))
        array = self.jobs.get(array_key) or self.ended.get(array_key)
        if task is None or array is None or array.progress is None or task not in array.progress.pending:
            return None
        return array.stopping or (array.state if array.is_final else None)

    def admit(self, job: Job, at: Moment, *, again: bool = False) -> Group | None:
        """Put a queued job where it waits: for parents, for its time, or for resources (returns its group).

        `again`: it waited there before, and its waiting time continues.
        """
        key, spec = job.key, job.spec
        if key in self.waits:
            return None
        if spec.begin_at <= at.wall:
            self.latest_begin = max(self.latest_begin, spec.begin_at)
        if spec.begin_at > at.wall or job.retry_boot > at.boot:
            self.later.add(key)
            self.alarms.set_begin(job, at)
            return None
        if job.target != LOCAL:
            self.outbound.add(key)
            if not spec.races_here:
                return None
        if not again:
            job.ready_at = at.boot
        if spec.overflow:
            self.undecided.add(job.key)
            self.alarms.set_overflow(job)
        return self.ready.add(job)

    def restart_wait(self, job: Job, now: float) -> None:
        """Let the waiting time of this job begin now."""
        self.ready.remove(job)
        job.ready_at = now
        self.ready.add(job)

    def postpone(self, at: Moment) -> None:
        """After the wall clock was set back: let jobs wait again whose begin time is in the future again."""
        if at.wall >= self.latest_begin:
            return
        self.latest_begin = 0.0
        for job in [job for job in self.jobs.values() if job.spec.begin_at]:
            if job.key in self.abroad or not (
                job in self.ready or (job.retry_boot and job.key in self.later)
            ):
                continue
            self.later.discard(job.key)
            self.ready.remove(job)
            self.admit(job, at, again=True)

    def wait_for(self, job: Job, wait: Wait) -> None:
        """Let `job` wait until `wait` is over."""
        self.waits[job.key] = wait
        if not wait.jobs and not wait.is_open:
            self.link(wait)
        wait.jobs.add(job.key)

    def link(self, wait: Wait) -> None:
        """Register a Wait with its parents, so that their ends reach it."""
        for parent in wait.parents:
            self.children.setdefault(parent, {})[id(wait)] = wait
            if task_of(parent) is not None:
                self.awaited.setdefault(job_key(number_of(parent)), set()).add(parent)

    def stop_waiting(self, job: Job) -> None:
        """Remove a waiting job from everything it waits in."""
        wait = self.waits.pop(job.key, None)
        if wait is not None:
            wait.jobs.discard(job.key)
            self.unlink_idle(wait)
        if self.arriving:
            self.arriving.pop(job.key, None)
        self.leave_queue(job)

    def unlink_idle(self, wait: Wait) -> None:
        """Unregister a Wait that has no jobs and gets none."""
        if not wait.jobs and not wait.is_open:
            for parent in wait.parents:
                self.unlink(parent, wait)

    def leave_queue(self, job: Job) -> None:
        """Remove a job from `later`, `outbound` and `ready`."""
        key = job.key
        self.later.discard(key)
        self.outbound.discard(key)
        self.ready.remove(job)

    def unlink(self, parent: JobKey, wait: Wait) -> None:
        """Unregister `wait` from `parent`."""
        del self.children[parent][id(wait)]
        if not self.children[parent]:
            self.take_waits(parent)

    def children_of(self, parent: JobKey) -> list[JobKey]:
        """The jobs that wait for `parent`, in order."""
        return sorted(key for wait in self.children.get(parent, {}).values() for key in wait.jobs)

    def take_waits(self, parent: JobKey) -> list[Wait]:
        """Remove and return the Waits on `parent`."""
        if task_of(parent) is not None and parent in self.children:
            array = job_key(number_of(parent))
            self.awaited[array].discard(parent)
            if not self.awaited[array]:
                del self.awaited[array]
        return list(self.children.pop(parent, {}).values())

    def is_capped(self, job: Job) -> bool:
        """Whether the cap of its group (`max_concurrent`) keeps this job from starting."""
        cap = job.spec.max_concurrent
        if not cap:
            return False
        itself = job.key in self.abroad and job.progress is None
        return self.group_running[job.spec.group] - itself >= cap

    @property
    def is_ruled(self) -> bool:
        """Whether any quota or GPU reservation exists. Usually none does, and checks are skipped."""
        return bool(self.policy.most_running or self.ledger.is_limited or self.reserved.live)

    def over_quota(self, job: Job) -> str | None:
        """The quota that keeps this job from starting, in words; None: none does."""
        usual = self.policy.most_running
        if not usual and not self.ledger.is_limited:
            return None
        return exceeded(self.ledger, job, usual if job.uid else 0, is_private=self.policy.is_private)

    def barred(self, job: Job) -> frozenset[int]:
        """GPUs that are reserved for other users before the hard end of this job, if it started now."""
        if not self.reserved.live:
            return NO_GPUS
        return self.reserved.barred(job.user, self.wall, hard_s(job.spec))

    def remember_recent(self, uid: int, key: JobKey) -> None:
        recent = self.recent.get(uid)
        if recent is None:
            recent = self.recent[uid] = deque(maxlen=RECENT)
        recent.append(key)

    # ------------------------------------------------------------ time

    def next_start_reservation(self) -> float | None:
        """The boot time of the next reserved start."""
        if not self.start_reservations:
            return None
        first = INFINITE
        for one in self.start_reservations:
            if one.now < one.start_at < first:
                first = one.start_at
        return first if first < INFINITE else None


def next_look(state: State) -> float | None:
    """The wall time at which a job may begin or a reservation changes."""
    times = (state.alarms.next_begin(), state.reserved.next_change)
    return min((at for at in times if at is not None), default=None)


def next_alarm(state: State) -> float | None:
    """The boot time of the next deadline or reserved start."""
    times = (state.alarms.next_alarm(), state.next_start_reservation())
    return min((at for at in times if at is not None), default=None)


def restore(
    state: State,
    jobs: Iterable[Job],
    outcomes: dict[JobKey, JobState],
    recent: Iterable[tuple[int, JobKey]],
    next_number: int,
    at: Moment,
    finished: Iterable[Job] = (),
) -> None:
    """Fill an empty state from the store. `outcomes`: how final parents ended."""
    state.next_number = next_number
    state.history.pass_time(at.boot)
    state.history.learn_all(finished)
    for uid, key in recent:
        state.remember_recent(uid, key)
    for job in sorted(jobs, key=lambda job: job.key):
        state.add(job)
    waits: Waits = {}
    for job in state.jobs.values():
        if job.abroad is not None:
            state.send(job)
            _join_race(state, job)
            continue
        if job.state is RUNNING:
            if not job.is_array:
                state.book(job)
                state.shares.resume(job.uid, job.spec.gpus)
            continue
        if job.spec.parents:
            _restore_wait(state, job, outcomes, waits)
        if job.state is QUEUED:
            # The daemon may have ended after the last parent, before the job was released.
            state.admit(job, at, again=bool(job.ready_at))


def _restore_wait(state: State, job: Job, outcomes: dict[JobKey, JobState], waits: Waits) -> None:
    """Let a job wait for its parents; jobs with the same parents share a Wait."""
    parents = job.spec.depends_on, job.spec.depends_any
    wait = waits.get(parents)
    if wait is None:
        wait = waits[parents] = Wait.of(job.spec, outcomes.get)
    if not wait.is_over:
        state.wait_for(job, wait)
    if wait.broken is not None and not job.spec.no_auto_cancel:
        state.arriving[job.key] = 0  # the daemon ended before the job was cancelled


def _join_race(state: State, job: Job) -> None:
    """Restore a remote job that races here too."""
    assert job.abroad is not None
    if job.abroad.kept is not None:
        state.keep(job, job.abroad.kept)
    elif job.state is QUEUED and job.spec.races_here and not job.abroad.hold:
        state.ready.add(job)
