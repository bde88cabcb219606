"""Tables of jobs: all active jobs, those that run here, those of other targets."""

from __future__ import annotations

from collections import deque

from gflow.core.ids import TASK_MASK, JobKey, job_key, number_of, task_of
from gflow.core.key_table import KeyTable
from gflow.core.model import Idle, Job, JobState
from gflow.core.resources import INFINITE
from gflow.core.state.accounting import Accounting
from gflow.core.state.end_times import EndingJob, EndTimes
from gflow.core.state.name_index import NameIndex
from gflow.core.state.runtime_estimates import Batch, RuntimeEstimates
from gflow.core.state.sorted_keys import SortedKeys
from gflow.core.transitions import QUEUED

# How far back `@~N` reaches, per user.
RECENT = 100


class JobTable(KeyTable[Job]):
    """Active jobs by key: all that are not final. Final jobs live in the store only."""

    def __init__(self) -> None:
        super().__init__()
        self.next_number = 1
        # Array -> its tasks that are jobs of their own and not final.
        self.tasks: dict[JobKey, set[JobKey]] = {}
        # Arrays, whether or not tasks of them still wait.
        self.arrays: set[JobKey] = set()
        # uid -> the user's latest jobs, oldest first.
        self.recent: dict[int, deque[JobKey]] = {}
        # Jobs that ended since the last commit: no longer in the table, not yet in the store.
        self.ended: dict[JobKey, Job] = {}
        # The jobs by name, without tasks of arrays.
        self.names = NameIndex()
        # The keys of all of them, in order.
        self.order = SortedKeys()

    def add(self, job: Job) -> None:
        key = job.key
        if key not in self:  # else a staged job, which arrives
            self.order.add(key)
        self[key] = job
        if key & TASK_MASK:
            self.tasks.setdefault(job_key(job.number), set()).add(key)
        else:
            self.names.add(job.uid, job.spec.shared_name, key)
            if job.progress is not None:
                self.arrays.add(key)

    def add_staged(self, jobs: KeyTable[Job], order: SortedKeys) -> None:
        """Make all jobs of a staged submission visible. Each is added by `add` when it arrives."""
        self.absorb(jobs)
        self.order.absorb(order)

    def drop(self, job: Job) -> None:
        """Remove a job that has become final."""
        key = job.key
        del self[key]
        self.order.remove(key)
        self.ended[key] = job
        if key & TASK_MASK:
            array = job_key(job.number)
            self.tasks[array].discard(key)
            if not self.tasks[array]:
                del self.tasks[array]
        else:
            self.names.remove(job.uid, job.spec.shared_name, key)
            self.arrays.discard(key)

    def rename(self, job: Job, name: str) -> None:
        """Note the new name of a job, before it gets it."""
        if not job.key & TASK_MASK and name != job.spec.shared_name:
            self.names.remove(job.uid, job.spec.shared_name, job.key)
            self.names.add(job.uid, name, job.key)

    def has_begun(self, key: JobKey) -> bool:
        """Whether this active job has started at least once; an array: whether all of its tasks have."""
        job = self.get(key)
        if job is None or job.state is JobState.RUNNING:
            return job is not None
        # A hand-over to another target is an attempt that may not have begun yet.
        return job.progress is None and job.attempt > (job.remote is not None)

    def array_with(self, key: JobKey) -> Job | None:
        """The array in whose record this task still waits, or None."""
        task = task_of(key)
        if task is None or key in self:
            return None
        array = self.get(job_key(number_of(key)))
        if array is None or array.progress is None or array.stopping is not None:
            return None
        return array if task in array.progress.pending else None

    def is_active(self, key: JobKey) -> bool:
        """Whether this is a job that is not final, or a task that still waits in its array."""
        return key in self or self.array_with(key) is not None

    def outcome(self, key: JobKey) -> JobState | None:
        """How this job ended, if that is not in the store yet; None: it has not ended, or it is."""
        if key in self.ended:
            return self.ended[key].state
        task, array_key = task_of(key), job_key(number_of(key))
        array = self.get(array_key) or self.ended.get(array_key)
        if task is None or array is None or array.progress is None or task not in array.progress.pending:
            return None
        return array.stopping or (array.state if array.is_final else None)

    def remember_recent(self, uid: int, key: JobKey) -> None:
        recent = self.recent.get(uid)
        if recent is None:
            recent = self.recent[uid] = deque(maxlen=RECENT)
        recent.append(key)


class RunningJobs(dict[JobKey, Job]):
    """Jobs that run here, by key: neither records of arrays nor remote jobs. A dict: every step reads it."""

    def __init__(self, estimates: RuntimeEstimates) -> None:
        super().__init__()
        self._estimates = estimates
        # The batch of each, for its runtime estimate; and their expected ends (see `ends`).
        self.batches: dict[JobKey, Batch] = {}
        self._end_times = EndTimes()
        # Jobs that may be preempted; those that are being preempted -> the job that needs their GPUs.
        self.preemptible: set[JobKey] = set()
        self.yielding: dict[JobKey, JobKey] = {}
        # Jobs that do not use their GPUs. Not stored: the next daemon finds out itself.
        self.unused: dict[JobKey, Idle] = {}
        # Killed jobs that are still alive, with the process that is. Not stored: shims tell the next daemon
        # too.
        self.stuck: dict[JobKey, str] = {}

    def add(self, job: Job, batch: Batch | None) -> None:
        """Add a job that starts. `batch`: that of its runtime estimate, if known."""
        key = job.key
        self[key] = job
        self.batches[key] = self._estimates.started(job, batch)
        if job.spec.preemptible:
            self.preemptible.add(key)
        self.note_stop(job)

    def remove(self, job: Job) -> None:
        """Remove a job that no longer runs, however it ended."""
        key = job.key
        del self[key]
        self._estimates.stopped(job, self.batches.pop(key))
        self._end_times.remove(key)
        self.preemptible.discard(key)
        self.yielding.pop(key, None)
        self.unused.pop(key, None)
        self.stuck.pop(key, None)

    def expected_end(self, job: Job, now: float) -> float:
        """The expected end of a running job, on the boot clock: not before now."""
        assert job.started_boot is not None
        return max(
            now, job.started_boot + self._estimates.length(job.spec.time_limit_s, self.batches[job.key])
        )

    def assumed_s(self, job: Job) -> float | None:
        """The run time that is assumed for a running job, in seconds; None: a limit or earlier runs tell."""
        batch = self.batches[job.key]
        length = INFINITE if job.spec.time_limit_s or batch.is_known else self._estimates.length(0, batch)
        return None if length == INFINITE else length

    def set_end(self, job: Job) -> None:
        """Update the expected end of a job that runs here. A job that is being stopped ends at once."""
        if job.key not in self:  # a remote job holds no resources here
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
        return key in self and self[key].stopping is not None

    def note_preemptible(self, job: Job) -> None:
        """Note whether a job that runs here may be preempted."""
        if job.spec.preemptible and job.key in self:
            self.preemptible.add(job.key)
        else:
            self.preemptible.discard(job.key)

    def ends(self) -> list[tuple[float, JobKey, EndingJob]]:
        """Expected ends of the running jobs, soonest first. They may lie in the past."""
        if self._estimates.moved:
            moved, self._estimates.moved = self._estimates.moved, set()
            for batch in moved:
                for key in batch.starts:
                    self.set_end(self[key])
        return self._end_times.entries


class RemoteJobs:
    """Keys of the jobs that other targets have or will have."""

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting
        # Jobs whose hand-over is pending; and remote jobs, which stay here while they run: no resources of
        # this machine are booked for them. A job that races is in `State.ready` as well, until it starts here
        # or there.
        self.pending: set[JobKey] = set()
        self.jobs: set[JobKey] = set()
        # Jobs in `State.ready` for which it has not been decided yet whether they overflow.
        self.undecided: set[JobKey] = set()

    def add(self, job: Job) -> None:
        """Note that another target has the job from now on."""
        self.pending.discard(job.key)
        self.jobs.add(job.key)
        if not job.is_array:
            self._accounting.regroup(None, job.spec.group)

    def remove(self, job: Job) -> None:
        """Note that the other target no longer has the job."""
        self.jobs.discard(job.key)
        job.remote = None
        if not job.is_array:
            self._accounting.regroup(job.spec.group, None)
