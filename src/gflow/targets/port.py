"""The port of a target: the interface through which the daemon runs jobs.

`targets.local` implements it, and `gflow.testing.FakeTarget` for tests. A target knows runs, not the queue:
the engine decides which job starts where. It reports each end once, through the `on_end` that it was created
with, when no process of that run lives any more.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gflow.core.ids import JobKey, label
from gflow.core.model import Job
from gflow.core.reasons import NO_REASON, Reason


class Run(NamedTuple):
    """One attempt of one job."""

    key: JobKey
    attempt: int

    @property
    def name(self) -> str:
        return f"{label(self.key)}.{self.attempt}"


class End(NamedTuple):
    """The end of a run. `problem` is set if it could not start, or gflow or Slurm ended it."""

    code: int | None = None
    signal: int | None = None
    problem: Reason = NO_REASON
    cpu_ms: int = 0
    peak_kib: int = 0
    # Seconds since the end, if it happened while no daemon ran.
    ago_s: float = 0.0


class Ended(NamedTuple):
    """The report that a run has ended: no process of it lives any more."""

    run: Run
    end: End


class HostRules(NamedTuple):
    """What the administrator of this machine sets for all jobs."""

    # Memory limit of jobs without one of their own, in MiB; 0: none.
    memory_mib: int = 0
    # Whether a job over that limit only gets a line in its log.
    is_memory_advice: bool = False
    # Whether a job gets at most the CPU time of the CPUs that it asked for.
    has_cpu_quota: bool = False
    # Raises the out-of-memory score of jobs, so that the kernel kills them first (proc_pid_oom_score_adj(5)).
    oom_score: int = 0
    # Whether each job has a /tmp and /dev/shm of its own. Only root can give them.
    has_private_tmp: bool = False


class Launch(NamedTuple):
    """A job that is to run now. Environments are blocks of NUL-terminated `NAME=value` strings."""

    job: Job
    script: bytes | None
    # The submitter's variables, and gflow's.
    environ: bytes
    extra: bytes
    log: str
    error_log: str
    # Size in bytes at which a log is rotated; 0: never.
    log_cap: int
    # Lease files of its GPUs.
    leases: tuple[str, ...]
    # The uid that it runs as; None: our own.
    uid: int | None
    # Maximum number of processes and threads; 0: unlimited.
    max_processes: int = 0
    # Seconds after KILL at which a process that still lives is reported; 0: never.
    unkillable_s: int = 0
    rules: HostRules = HostRules()
    # Words before the interpreter of its script.
    wrapper: tuple[str, ...] = ()
    # Rules about devices (gpu/device_files.py); empty: it may open all.
    devices: str = ""
    # The cards that these rules allow.
    cards: tuple[str, ...] = ()
    # The job's folder on this machine, if it runs elsewhere.
    here: str = ""
    # Whether certainly no earlier daemon has launched it.
    is_new: bool = False

    @property
    def run(self) -> Run:
        return Run(self.job.key, self.job.attempt)


class Target(Protocol):
    """Runs jobs. All methods are called from the daemon's loop and return at once."""

    def start(self, launch: Launch) -> None:
        """Run it once, even if an earlier daemon has ordered the same run. OSError: it cannot be started."""

    def stop(self, run: Run, *, now: bool, grace_s: int = 0, why: str = "") -> None:
        """TERM, the grace time, KILL of everything that the job started; with `now`, KILL at once.

        `grace_s`: a grace time other than the job's own; 0: the job's own. `why`: how the job ended, for its
        log: `was cancelled by ann`.
        """

    def signal(self, run: Run, number: int) -> None:
        """Send a signal to the job: a warning before its time limit, or one that a user asked for.

        A negative number: only to the job's first process. Otherwise a batch shell does not get it.
        """

    def terminal(self, run: Run) -> str:
        """The socket of the terminal of a run that has one."""

    def exec_command(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        """Execute a command in a running job; the path of its socket. OSError: it cannot be executed."""

    def adopt(self, run: Run) -> bool:
        """Find a run that an earlier daemon launched, and report its end. False: it certainly never began."""

    def forget(self, run: Run) -> None:
        """Delete the files of a run, once its end is durable in the database."""

    def forget_others(self, keep: set[str]) -> None:
        """Forget all runs except those with these names."""
