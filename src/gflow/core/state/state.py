"""The engine's state. Rebuilt from the store by `restore`, never stored as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from gflow.core.ids import JobKey, job_key
from gflow.core.key_table import KeySet, KeyTable
from gflow.core.model import LOCAL, PARENT_FIELDS, Gpu, Job, JobState, Moment
from gflow.core.policy import USUAL, Policy
from gflow.core.state.accounting import Accounting
from gflow.core.state.deadlines import Deadlines
from gflow.core.state.dependencies import Dependencies, Wait
from gflow.core.state.eta_calibration import EtaCalibration
from gflow.core.state.groups import Groups
from gflow.core.state.job_tables import JobTable, RemoteJobs, RunningJobs
from gflow.core.state.machine import Machine
from gflow.core.state.queue import ReadyQueue
from gflow.core.state.queue_index import Group
from gflow.core.state.reservations import ReservationTable
from gflow.core.state.runtime_estimates import Batch, RuntimeEstimates
from gflow.core.state.start_reservations import StartReservations
from gflow.core.transitions import QUEUED, RUNNING

if TYPE_CHECKING:
    from gflow.core.state.submissions import Opened

# Bulk work is done to at most this many jobs in one turn of the loop: about 5 ms.
PART = 100
# By the parents of each kind.
Waits = dict[tuple[tuple[JobKey, ...], ...], Wait]


class State:
    """Active jobs and the machine: a facade over tables that each keep one subject.

    Its own methods are those that change several tables at once. A waiting job is in exactly one of
    `dependencies.waits` (for parents), `deadlines.later` (for its begin time or a retry), and `ready`. A job
    of another target is, instead of in `ready`, in `remote.pending` and then in `remote.jobs`.
    """

    def __init__(self, *, cpus: int, memory_mib: int, policy: Policy = USUAL) -> None:
        self.policy = policy
        self.machine = Machine(cpus, memory_mib, policy.gpus)
        self.jobs = JobTable()
        self.runtime_estimates = RuntimeEstimates(use_history=policy.lengths == "history")
        self.running = RunningJobs(self.runtime_estimates)
        self.ready = ReadyQueue(self.runtime_estimates, self.machine, by_length=policy.order == "shortest")
        self.dependencies = Dependencies()
        self.deadlines = Deadlines(self.jobs)
        self.accounting = Accounting(policy, self.machine)
        self.remote = RemoteJobs(self.accounting)
        self.groups = Groups()
        # GPU reservations, which operators make; and start reservations, which the scheduler makes.
        self.reserved = ReservationTable()
        self.start_reservations = StartReservations()
        # Outcomes of earlier forecasts.
        self.eta_calibration = EtaCalibration()
        # Staged submissions, by their first number; see `core.lifecycle.staged_submit`.
        self.open: dict[int, Opened] = {}
        # Jobs that have yet to enter the queue, some in each turn: those of a staged submission that is
        # closed (its first number), and those whose last parent has ended (0).
        self.arriving: KeyTable[int] = KeyTable()
        # Jobs of a bulk cancel, hold or update that is not finished: they do not start.
        self.claimed = KeySet()
        # How many children one ended job may release or cancel in its own turn.
        self.part = PART

    # ------------------------------------------------------------ jobs

    def add(self, job: Job) -> None:
        self.jobs.add(job)
        self.accounting.add(job)
        self.groups.add(job.spec.group)

    def drop(self, job: Job) -> None:
        """Forget a job that has become final."""
        self.jobs.drop(job)
        self.accounting.drop(job)
        self.runtime_estimates.learn(job)

    def book(self, job: Job, batch: Batch | None = None) -> None:
        """Book the resources of a job that starts. `batch`: that of its runtime estimate, if known."""
        self.machine.take(job)
        self.running.add(job, batch)
        self.accounting.regroup(None, job.spec.group)
        self.accounting.quota_usage.run(job)
        self.deadlines.set_limit(job)

    def unbook(self, job: Job, now: float = 0.0) -> None:
        """Release the resources of a job. `now`: on the boot clock."""
        spec, accounting = job.spec, self.accounting
        self.machine.give_back(job, now)
        self.running.remove(job)
        accounting.regroup(spec.group, None)
        accounting.quota_usage.run(job, -1)
        accounting.fair_share.run(job.uid, spec.shape, now, -1)

    def is_claimed(self, job: Job) -> bool:
        """Whether a bulk change of the job, or of the array that it is a task of, is under way."""
        return bool(self.claimed) and (job.key in self.claimed or job_key(job.number) in self.claimed)

    def is_capped(self, job: Job) -> bool:
        """Whether the cap of its group (`max_concurrent`) keeps this job from starting."""
        cap = job.spec.max_concurrent
        if not cap:
            return False
        itself = job.key in self.remote.jobs and job.progress is None
        return self.accounting.group_running[job.spec.group] - itself >= cap

    @property
    def has_quotas_or_reservations(self) -> bool:
        """Whether any quota or GPU reservation exists. Usually none does, and checks are skipped."""
        return bool(self.policy.most_running or self.accounting.quota_usage.is_limited or self.reserved.live)

    # ------------------------------------------------------------ the queue

    def admit(self, job: Job, at: Moment, *, again: bool = False) -> Group | None:
        """Put a queued job where it waits: for parents, for its time, or for resources (returns its group).

        `again`: it waited there before, and its waiting time continues.
        """
        key, spec = job.key, job.spec
        if key in self.dependencies.waits:
            return None
        if spec.begin_at <= at.wall:
            self.deadlines.latest_begin = max(self.deadlines.latest_begin, spec.begin_at)
        if spec.begin_at > at.wall or job.retry_boot > at.boot:
            self.deadlines.set_begin(job, at)
            return None
        if job.target != LOCAL:
            self.remote.pending.add(key)
            if not spec.races_here:
                return None
        if not again:
            job.ready_at = at.boot
        if spec.overflow:
            self.remote.undecided.add(job.key)
            self.deadlines.set_overflow(job)
        return self.ready.add(job)

    def leave_queue(self, job: Job) -> None:
        """Remove a job from `deadlines.later`, `remote.pending` and `ready`."""
        key = job.key
        self.deadlines.later.discard(key)
        self.remote.pending.discard(key)
        self.ready.remove(job)

    def stop_waiting(self, job: Job) -> None:
        """Remove a waiting job from everything it waits in."""
        self.dependencies.remove(job.key)
        if job.key in self.arriving:
            del self.arriving[job.key]
        self.leave_queue(job)

    def restart_wait(self, job: Job, now: float) -> None:
        """Let the waiting time of this job begin now."""
        self.ready.remove(job)
        job.ready_at = now
        self.ready.add(job)

    def postpone(self, at: Moment) -> bool:
        """After the wall clock was set back: let jobs wait again whose begin time is in the future again.
        Returns whether any has left the queue."""
        later, queued = self.deadlines.later, len(self.ready)
        if at.wall >= self.deadlines.latest_begin:
            return False
        self.deadlines.latest_begin = 0.0
        for job in [job for job in self.jobs.values() if job.spec.begin_at]:
            if job.key in self.remote.jobs or not (
                job in self.ready or (job.retry_boot and job.key in later)
            ):
                continue
            later.discard(job.key)
            self.ready.remove(job)
            self.admit(job, at, again=True)
        return len(self.ready) < queued

    # ------------------------------------------------------------ the GPUs of the machine

    def see_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Replace the known GPUs; sort the waiting jobs by type of GPU again if others are known now."""
        if self.machine.see_gpus(gpus):
            self.ready.rebuild_ages()

    # ------------------------------------------------------------ races with another target

    def keep_gpus(self, job: Job, gpu_ids: tuple[int, ...]) -> None:
        """Book these GPUs for a remote job that is being withdrawn: it starts on them if that succeeds."""
        assert job.remote is not None
        self.leave_queue(job)
        job.remote = msgspec.structs.replace(job.remote, kept=gpu_ids)
        self.machine.take(msgspec.structs.replace(job, gpu_ids=gpu_ids))

    def leave_race(self, job: Job, now: float) -> bool:
        """Remove a racing job from the queue here; whether that frees GPUs or a reservation."""
        had_reservation = self.start_reservations.has(job.key)
        self.leave_queue(job)
        if job.remote is None or job.remote.kept is None:
            return had_reservation
        self.machine.give_back(msgspec.structs.replace(job, gpu_ids=job.remote.kept), now)
        job.remote = msgspec.structs.replace(job.remote, kept=None)
        return True


def next_wall_deadline(state: State) -> float | None:
    """The wall time at which a job may begin or a reservation changes."""
    times = (state.deadlines.next_begin(), state.reserved.next_change)
    return min((at for at in times if at is not None), default=None)


def next_boot_deadline(state: State) -> float | None:
    """The boot time of the next deadline or reserved start."""
    times = (state.deadlines.next_due(), state.start_reservations.next_start())
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
    state.jobs.next_number = next_number
    state.runtime_estimates.pass_time(at.boot)
    state.runtime_estimates.learn_all(finished)
    for uid, key in recent:
        state.jobs.remember_recent(uid, key)
    for job in sorted(jobs, key=lambda job: job.key):
        state.add(job)
    waits: Waits = {}
    for job in state.jobs.values():
        if job.remote is not None:
            state.remote.add(job)
            _join_race(state, job)
            continue
        if job.state is RUNNING:
            if not job.is_array:
                state.book(job)
                state.accounting.fair_share.resume(job.uid, job.spec.shape)
            continue
        if job.spec.parents:
            _restore_wait(state, job, outcomes, waits)
        if job.state is QUEUED:
            # The daemon may have ended after the last parent, before the job was released.
            state.admit(job, at, again=bool(job.ready_at))


def _restore_wait(state: State, job: Job, outcomes: dict[JobKey, JobState], waits: Waits) -> None:
    """Let a job wait for its parents; jobs with the same parents share a Wait."""
    parents = *(getattr(job.spec, field) for field in PARENT_FIELDS), job.spec.depends_earlier
    wait = waits.get(parents)
    if wait is None:
        wait = waits[parents] = Wait.of(job.spec, outcomes.get, state.jobs.has_begun)
    if not wait.is_over:
        state.dependencies.add(job, wait)
    if wait.broken is not None and not job.spec.no_auto_cancel:
        state.arriving[job.key] = 0  # the daemon ended before the job was cancelled


def _join_race(state: State, job: Job) -> None:
    """Restore a remote job that races here too."""
    assert job.remote is not None
    if job.remote.kept is not None:
        state.keep_gpus(job, job.remote.kept)
    elif job.state is QUEUED and job.spec.races_here and not job.remote.hold:
        state.ready.add(job)
