"""What the engine knows: the job, what was asked for it, the GPUs.

`Spec` is what the submitter asked for and never changes by itself; `Job` is the spec plus
what became of it. These are the only job records of the whole product: the store writes
them, the API shows them, the runner reads them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from gflow.core.ids import JobKey, label, number_of, task_of


class JobState(enum.Enum):
    """The seven states. Anything finer is a reason. See `core.states` for the table."""

    QUEUED = "Queued"
    HOLD = "Hold"
    RUNNING = "Running"
    FINISHED = "Finished"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    TIMEOUT = "Timeout"


SHORT = {
    JobState.QUEUED: "PD",
    JobState.HOLD: "H",
    JobState.RUNNING: "R",
    JobState.FINISHED: "CD",
    JobState.FAILED: "F",
    JobState.CANCELLED: "CA",
    JobState.TIMEOUT: "TO",
}
ACTIVE = frozenset({JobState.QUEUED, JobState.HOLD, JobState.RUNNING})
FINAL = frozenset(JobState) - ACTIVE


class Moment(NamedTuple):
    """One instant on both clocks: begin times use `wall`, limits use `boot`. Seconds."""

    wall: float
    boot: float


class Shape(NamedTuple):
    """What a job needs in order to start. Jobs of one shape fit or wait together."""

    gpus: int
    cpus: int


class Spec(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What was asked for. Everything a start needs, captured at submission."""

    command: tuple[str, ...]
    cwd: str
    umask: int = 0o022
    # Content addresses of the environment block and the script text; the store has the bytes.
    environ: str = ""
    script: str = ""
    # Where the script was when it was submitted; empty for commands.
    script_path: str = ""
    # The fields below are filled by options of the same table row (options/table.py).
    name: str = ""
    gpus: int = 0
    priority: int = 10
    time_limit_s: int = 0
    depends_on: tuple[JobKey, ...] = ()

    @property
    def shape(self) -> Shape:
        # A job without GPUs takes one CPU slot, a job with GPUs none.
        return Shape(self.gpus, 0 if self.gpus else 1)


class Job(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """One job: its spec and what became of it. Times are seconds on the wall clock."""

    key: JobKey
    spec: Spec
    uid: int
    user: str
    submitted_at: float
    state: JobState = JobState.QUEUED
    reason: str = ""
    attempt: int = 0
    gpu_ids: tuple[int, ...] = ()
    started_at: float | None = None
    started_boot: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    # Set while a running job is being stopped: the state it will end in.
    stopping: JobState | None = None
    target: str = "local"

    @property
    def number(self) -> int:
        return number_of(self.key)

    @property
    def task(self) -> int | None:
        return task_of(self.key)

    @property
    def label(self) -> str:
        return label(self.key)

    @property
    def name(self) -> str:
        return self.spec.name or f"job-{self.label}"

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU of this machine, as detected (or simulated, and then it says so)."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    simulated: bool = False
