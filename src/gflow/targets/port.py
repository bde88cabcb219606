"""What the daemon asks of whatever runs jobs. `targets.local` is one; `gflow.testing.FakeTarget` is another.

A target hears of runs, never of the queue: which job starts where is the engine's word. It reports each end
once, through the `on_end` that it was made with, when nothing of that run lives any more.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gflow.core.ids import JobKey, label
from gflow.core.model import Job
from gflow.targets.outcome import End

__all__ = ["End", "Ended", "Launch", "Run", "Target"]


class Run(NamedTuple):
    """One attempt of one job."""

    key: JobKey
    attempt: int

    @property
    def name(self) -> str:
        return f"{label(self.key)}.{self.attempt}"


class Ended(NamedTuple):
    """Nothing of this run lives any more."""

    run: Run
    end: End


class Launch(NamedTuple):
    """A job as it is to run now. Environments are blocks of `NAME=value`, each ended by a zero."""

    job: Job
    script: bytes | None
    # The submitter's variables, and ours.
    environ: bytes
    extra: bytes
    log: str
    error_log: str
    # Bytes after which a log is cut; 0: never.
    log_cap: int
    # Files that stand for its GPUs between daemons.
    leases: tuple[str, ...]
    # Whom it runs as; None: as ourselves.
    uid: int | None
    # How many processes and threads it may have at once; 0: any number.
    max_processes: int = 0
    # Seconds after KILL at which a process that still lives is reported; 0: never.
    unkillable_s: int = 0

    @property
    def run(self) -> Run:
        return Run(self.job.key, self.job.attempt)


class Target(Protocol):
    """Runs jobs. All methods are called from the daemon's loop and return at once."""

    def start(self, launch: Launch) -> None:
        """Run it, once: also if an earlier daemon has asked for the same run. OSError: it cannot be."""

    def stop(self, run: Run, *, now: bool, grace_s: int = 0) -> None:
        """TERM, the grace time, KILL of all that the job started; with `now` KILL at once. `grace_s`: so
        long instead of what the job asked for.
        """

    def signal(self, run: Run, number: int) -> None:
        """A signal to the job: a warning that its time is nearly up."""

    def terminal(self, run: Run) -> str:
        """The socket of the terminal of a run that has one."""

    def beside(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        """Run a command beside a run that is on; the socket by which it is reached. OSError: it cannot be."""

    def adopt(self, run: Run) -> bool:
        """Find a run that an earlier daemon launched, and report its end. False: it surely never began."""

    def forget(self, run: Run) -> None:
        """Its end is durable elsewhere."""

    def forget_others(self, keep: set[str]) -> None:
        """So are the ends of all but the runs of these names."""
