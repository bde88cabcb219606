"""All that the engine remembers. Rebuilt from the store by `restore`, never saved as a whole."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from gflow.core.forecast.calibration import EtaCalibration
from gflow.core.ids import TASK_MASK, JobKey, job_key, number_of, parse_label, task_of
from gflow.core.model import LOCAL, PREEMPTED, Idle, Job, JobState, Moment
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
# What is about many jobs is done to so many of them in one turn: about 5 ms of work.
PART = 100
NO_GPUS: frozenset[int] = frozenset()
# By the parents that all must succeed, and those of which one must.
Waits = dict[tuple[tuple[JobKey, ...], tuple[JobKey, ...]], Wait]


class State:
    """Active jobs and the machine. Final jobs live in the store only."""

    def __init__(self, *, cpus: int, memory_mib: int, policy: Policy = USUAL) -> None:
        self.policy = policy
        self.machine = Machine(cpus, memory_mib, policy.gpus)
        # Jobs that do not use GPUs they have. Not kept: the next daemon looks for itself.
        self.unused: dict[JobKey, Idle] = {}
        # Jobs that were killed and live on, and which process it is. Their shims tell the next daemon too.
        self.stuck: dict[JobKey, str] = {}

        self.jobs: dict[JobKey, Job] = {}
        self.next_number = 1
        # A waiting job is in exactly one of: waits (for parents), later (for its time), ready; those of other
        # targets, instead of ready: outbound (to be handed over next), then abroad.
        self.waits: dict[JobKey, Wait] = {}
        self.later: set[JobKey] = set()
        # All that is abroad stays there while it runs: nothing of this machine is booked for it. One that
        # races here too is in `ready` beside that, until one of the two has it.
        self.outbound, self.abroad = set[JobKey](), set[JobKey]()
        # Those in `ready` of which nobody has looked yet whether they start here soon enough.
        self.undecided = set[JobKey]()
        self.history = History()
        self.ready = ReadyQueue(
            self.history,
            by_length=policy.order == "shortest",
            use_history=policy.lengths == "history",
        )
        self.shares = Shares(policy.half_life_s)
        # What people may have and what they have; which GPUs are reserved.
        self.ledger, self.reserved = QuotaUsage(policy.quotas), ReservationTable()
        # Starts that are promised to those who have waited too long, as of the latest round.
        self.start_reservations: list[StartReservation] = []
        # What became of earlier forecasts.
        self.foretold = EtaCalibration()
        # Jobs that run, without the records of arrays.
        self.running: dict[JobKey, Job] = {}
        # What the expected end of each goes by, and these ends (see `ends`).
        self.batches: dict[JobKey, Batch] = {}
        self._end_times = EndTimes()
        # Running jobs that make way if they must; those that do, and for whom.
        self.preemptible: set[JobKey] = set()
        self.yielding: dict[JobKey, JobKey] = {}
        # Parent -> what waits for it, by identity: jobs with the same parents share a Wait, so that the links
        # of many jobs to many parents are as many as both together.
        self.children: dict[JobKey, dict[int, Wait]] = {}
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
        # Submissions that are taken in parts, by their first number; see `core.lifecycle.staged_submit`.
        self.open: dict[int, Opened] = {}
        # Jobs that are yet to be put where they wait, a few in each turn: those of a large submission that
        # is closed (by its first number), and those whose last parent has ended (0).
        self.arriving: dict[JobKey, int] = {}
        # Jobs that are being cancelled, held or updated in parts: none of them starts meanwhile.
        self.claimed: set[JobKey] = set()
        # How many jobs one end may let go on, or cut off, in its own turn.
        self.part = PART
        # Jobs that ended since the last commit: out of `jobs`, not yet in the store.
        self.ended: dict[JobKey, Job] = {}
        self.alarms = Alarms(self.jobs, self.later)
        # The latest begin time that has come: a wall clock before it has been set back.
        self.latest_begin = 0.0
        # What time it was last, on the wall clock and on the boot clock.
        self.wall = self.now = 0.0

    # ------------------------------------------------------------ what runs

    def book(self, job: Job, batch: Batch | None = None) -> None:
        """Take the resources of a job that runs from now on. `batch`: what its end goes by, if known."""
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
        """Give them back. `now`: on the boot clock."""
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
        """Another target has it from now on."""
        self.outbound.discard(job.key)
        self.abroad.add(job.key)
        if not job.is_array:
            self.regroup(None, job.spec.group)

    def keep(self, job: Job, gpu_ids: tuple[int, ...]) -> None:
        """Nobody else gets these: it starts with them if it can be taken back."""
        assert job.abroad is not None
        self.leave_line(job)
        job.abroad = msgspec.structs.replace(job.abroad, kept=gpu_ids)
        self.machine.take(msgspec.structs.replace(job, gpu_ids=gpu_ids))

    def leave_race(self, job: Job, now: float) -> bool:
        """It does not start here any more, for now. Whether others may have what it had or kept."""
        had_reservation = any(reservation.key == job.key for reservation in self.start_reservations)
        self.leave_line(job)
        if job.abroad is None or job.abroad.kept is None:
            return had_reservation
        self.machine.give_back(msgspec.structs.replace(job, gpu_ids=job.abroad.kept), now)
        job.abroad = msgspec.structs.replace(job.abroad, kept=None)
        return True

    def fetch(self, job: Job) -> None:
        """It does not have it any more."""
        self.abroad.discard(job.key)
        job.abroad = None
        if not job.is_array:
            self.regroup(job.spec.group, None)

    def expected_end(self, job: Job, now: float) -> float:
        """When a running job is expected to be over, on the boot clock: not before now."""
        assert job.started_boot is not None
        return max(now, job.started_boot + self.ready.length(job.spec.time_limit_s, self.batches[job.key]))

    def set_end(self, job: Job) -> None:
        """Note when a job that runs here is expected to be over: one that is being stopped, at once."""
        if job.key not in self.running:  # a job abroad has nothing that others could get here
            return
        self._end_times.put(job, 0.0 if job.stopping else self.expected_end(job, 0.0))

    def note_stop(self, job: Job) -> None:
        """Note that a running job is being stopped, and for whom it makes way, if it is and does."""
        self.set_end(job)
        if job.stopping is QUEUED and (whom := parse_label(job.reason.removeprefix(PREEMPTED))):
            self.yielding[job.key] = whom
        else:
            self.yielding.pop(job.key, None)

    def is_stopping(self, key: JobKey) -> bool:
        """Whether whoever has a GPU is being stopped."""
        return key in self.running and self.running[key].stopping is not None

    def note_preemptible(self, job: Job) -> None:
        """Note whether a job that runs here makes way if it must."""
        if job.spec.preemptible and job.key in self.running:
            self.preemptible.add(job.key)
        else:
            self.preemptible.discard(job.key)

    def ends(self) -> list[tuple[float, JobKey, EndingJob]]:
        """When each running job is expected to be over, soonest first. That may have been some time ago."""
        if self.history.moved:
            moved, self.history.moved = self.history.moved, set()
            for batch in moved:
                for key in batch.starts:
                    self.set_end(self.running[key])
        return self._end_times.entries

    def regroup(self, old: int | None, new: int | None) -> None:
        """A running job leaves one group and joins another."""
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
        """A person has so many more active jobs."""
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

    def admit(self, job: Job, at: Moment, *, again: bool = False) -> Group | None:
        """Put a queued job where it waits: for parents, for its time, or for resources (its group then).

        `again`: it was there before, and has waited since.
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
        """How long this job has waited so far is forgotten."""
        self.ready.remove(job)
        job.ready_at = now
        self.ready.add(job)

    def postpone(self, at: Moment) -> None:
        """After the clock was set back: jobs whose begin time is to come again wait for it again."""
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
        """`job` becomes ready only when `wait` is over."""
        self.waits[job.key] = wait
        if not wait.jobs and not wait.is_open:
            self.link(wait)
        wait.jobs.add(job.key)

    def link(self, wait: Wait) -> None:
        """Let the ends of its parents be told to it."""
        for parent in wait.parents:
            self.children.setdefault(parent, {})[id(wait)] = wait
            if task_of(parent) is not None:
                self.awaited.setdefault(job_key(number_of(parent)), set()).add(parent)

    def stop_waiting(self, job: Job) -> None:
        """Take a waiting job out of everything it waits in."""
        wait = self.waits.pop(job.key, None)
        if wait is not None:
            wait.jobs.discard(job.key)
            self.unlink_idle(wait)
        if self.arriving:
            self.arriving.pop(job.key, None)
        self.leave_line(job)

    def unlink_idle(self, wait: Wait) -> None:
        """Nothing is told any more to what has no jobs and will have none."""
        if not wait.jobs and not wait.is_open:
            for parent in wait.parents:
                self.unlink(parent, wait)

    def leave_line(self, job: Job) -> None:
        """Out of all places in which it waits for its turn."""
        key = job.key
        self.later.discard(key)
        self.outbound.discard(key)
        self.ready.remove(job)

    def unlink(self, parent: JobKey, wait: Wait) -> None:
        """`wait` is not about `parent` any more."""
        del self.children[parent][id(wait)]
        if not self.children[parent]:
            self.take_waits(parent)

    def children_of(self, parent: JobKey) -> list[JobKey]:
        """The jobs that wait for `parent`, in order."""
        return sorted(key for wait in self.children.get(parent, {}).values() for key in wait.jobs)

    def take_waits(self, parent: JobKey) -> list[Wait]:
        """What waits for `parent`: from now on it does not."""
        if task_of(parent) is not None and parent in self.children:
            array = job_key(number_of(parent))
            self.awaited[array].discard(parent)
            if not self.awaited[array]:
                del self.awaited[array]
        return list(self.children.pop(parent, {}).values())

    def is_capped(self, job: Job) -> bool:
        """Whether as many jobs of its group run as may."""
        cap = job.spec.max_concurrent
        if not cap:
            return False
        itself = job.key in self.abroad and job.progress is None
        return self.group_running[job.spec.group] - itself >= cap

    @property
    def is_ruled(self) -> bool:
        """Whether there are quotas or reservations at all: most often there are none."""
        return bool(self.policy.most_running or self.ledger.is_limited or self.reserved.live)

    def over_quota(self, job: Job) -> str | None:
        """Which quota keeps this job from starting, in words; None: none does."""
        usual = self.policy.most_running
        if not usual and not self.ledger.is_limited:
            return None
        return exceeded(self.ledger, job, usual if job.uid else 0, is_private=self.policy.is_private)

    def barred(self, job: Job) -> frozenset[int]:
        """GPUs that are reserved for others before this job would be over at the latest."""
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
        """The boot time at which the next promised start is due."""
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
    """The boot time at which an alarm is due, or a job is not to start as promised."""
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
    """Fill an empty state from what the store has. `outcomes`: how final parents ended."""
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
            _wait_again(state, job, outcomes, waits)
        if job.state is QUEUED:
            # Its last parent may have ended, and the daemon before the job was told.
            state.admit(job, at, again=bool(job.ready_at))


def _wait_again(state: State, job: Job, outcomes: dict[JobKey, JobState], waits: Waits) -> None:
    """Let a job wait for its parents; those with the same parents share that."""
    parents = job.spec.depends_on, job.spec.depends_any
    wait = waits.get(parents)
    if wait is None:
        wait = waits[parents] = Wait.of(job.spec, outcomes.get)
    if not wait.is_over:
        state.wait_for(job, wait)
    if wait.broken is not None and not job.spec.no_auto_cancel:
        state.arriving[job.key] = 0  # the daemon ended before it was cut off


def _join_race(state: State, job: Job) -> None:
    """A job that another target has, and that may start here too."""
    assert job.abroad is not None
    if job.abroad.kept is not None:
        state.keep(job, job.abroad.kept)
    elif job.state is QUEUED and job.spec.races_here and not job.abroad.hold:
        state.ready.add(job)
