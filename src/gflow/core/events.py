"""Events: the only input of the engine. Each carries its time on both clocks; the engine reads no clock."""

from __future__ import annotations

from typing import Any

import msgspec

from gflow.core.ids import JobKey
from gflow.core.model import Block, Gpu, Idle, JobProgress, JobState, Moment, Spec
from gflow.core.reasons import NO_REASON, Reason
from gflow.core.state.eta_calibration import EtaSample
from gflow.core.state.quotas import Limits


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events."""

    at: Moment


class Submit(Event, frozen=True, kw_only=True):
    """Submit these jobs: all of them or none."""

    uid: int
    user: str
    # References to parents are resolved: `depends_on` and `depends_any` have keys.
    specs: tuple[Spec, ...]
    # Final states of parents that are no longer in memory. A parent neither here nor active does not exist.
    outcomes: dict[JobKey, JobState]
    # Parents that the submitter may not see; treated as nonexistent.
    hidden: frozenset[JobKey] = frozenset()


class Open(Event, frozen=True, kw_only=True):
    """Open a staged submission of `count` jobs. `projects`: how many of them belong to each project."""

    uid: int
    user: str
    count: int
    projects: dict[str, int] = {}
    # Origin of the request, for the audit log.
    origin: str = "daemon"


class Stage(Event, frozen=True, kw_only=True):
    """Stage the next jobs of an open submission. Parents are resolved, as in `Submit`."""

    first: int
    specs: tuple[Spec, ...]
    outcomes: dict[JobKey, JobState]
    hidden: frozenset[JobKey] = frozenset()


class Close(Event, frozen=True, kw_only=True):
    """Close a submission: all of its jobs are staged."""

    uid: int
    first: int


class Abandon(Event, frozen=True, kw_only=True):
    """Remove a submission that is not closed."""

    first: int


class Arrive(Event, frozen=True, kw_only=True):
    """Put up to `most` arriving jobs into the queue."""

    most: int
    # Jobs of this submission; 0, or if it has none left: the first of all arriving jobs.
    first: int = 0


class UserAction(Event, frozen=True, kw_only=True):
    """An action of a user on jobs: their own, or those of all users if `is_operator`."""

    uid: int
    is_operator: bool = False
    keys: tuple[JobKey, ...]


class Claim(Event, frozen=True, kw_only=True):
    """Check an action that is carried out in parts, and keep its jobs from starting until then.

    `size`, `links`: bytes and dependency links that earlier parts of the same action add.
    """

    action: UserAction
    size: int = 0
    links: int = 0


class Unclaim(Event, frozen=True, kw_only=True):
    """Drop the claims on these jobs."""

    keys: tuple[JobKey, ...]


class Cancel(UserAction, frozen=True, kw_only=True):
    """Cancel these jobs; `now` skips the grace time. `user`: the name of the acting user."""

    now: bool = False
    user: str = ""


class SendSignal(UserAction, frozen=True, kw_only=True):
    """Send a signal to the running jobs among these. A negative number: only to their first processes."""

    number: int
    # Its name, for the audit log.
    name: str


class Hold(UserAction, frozen=True, kw_only=True):
    """Hold these waiting jobs."""


class Release(UserAction, frozen=True, kw_only=True):
    """Release these held jobs; with `begin_at`, they start no earlier than that."""

    begin_at: float | None = None


class Update(UserAction, frozen=True, kw_only=True):
    """Update specs. `fields` are fields of Spec, validated by the readers of the option table."""

    fields: dict[str, Any]
    outcomes: dict[JobKey, JobState]
    hidden: frozenset[JobKey] = frozenset()
    # Seconds to add to the time limit of each job.
    extend_s: int = 0
    # Group for jobs that get a cap and have no group; 0: numbered after the first of them.
    group: int = 0


class Exited(Event, frozen=True, kw_only=True):
    """All processes of this attempt have ended. `problem` is set if it ended without an exit."""

    key: JobKey
    attempt: int
    code: int | None
    signal: int | None = None
    problem: Reason = NO_REASON
    # CPU time and peak memory; both 0 if they could not be measured.
    cpu_ms: int = 0
    peak_kib: int = 0
    # Seconds since the end, if it happened while no daemon ran.
    ended_ago_s: float = 0.0


class RemoteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of an attempt on another target: the reason why it waits there, or that it runs."""

    key: JobKey
    attempt: int
    running: bool = False
    reason: str = ""
    id: str = ""
    nodes: str = ""
    # GPUs of the shape that won a race, on all nodes; 0: those of the spec.
    gpus: int = 0
    # What became of the outputs of an attempt that may have ended: only for the audit log.
    outputs: str = ""


class Seen(Event, frozen=True, kw_only=True):
    """Changed statuses of remote jobs."""

    statuses: tuple[RemoteStatus, ...]


class Tick(Event, frozen=True, kw_only=True):
    """Time has passed: a deadline may be due."""


class GpusSeen(Event, frozen=True, kw_only=True):
    """The GPUs of this machine, as of now.

    `blocked`: GPUs that get no new jobs, and why. `taken`: MiB per GPU used by tolerated processes that
    belong to no job. `trouble`: why the GPUs cannot be detected. `faults`: cards (by UUID) that stay
    drained until they are resumed; None: not examined, so the earlier faults stand.
    """

    gpus: tuple[Gpu, ...]
    blocked: dict[int, Block] = {}
    taken: dict[int, int] = {}
    trouble: str = ""
    faults: dict[str, str] | None = None


class Overran(Event, frozen=True, kw_only=True):
    """A job on a shared GPU uses more GPU memory than it declared."""

    key: JobKey
    attempt: int
    gpu: int
    used_mib: int


class IdleSeen(Event, frozen=True, kw_only=True):
    """The complete list of jobs that leave GPUs unused for long. Jobs not listed use theirs."""

    idle: dict[JobKey, Idle]


class Idled(Event, frozen=True, kw_only=True):
    """An attempt has used none of its GPUs for `idle.unused_s` seconds."""

    key: JobKey
    attempt: int
    idle: Idle


class Stuck(Event, frozen=True, kw_only=True):
    """An attempt was killed, but one of its processes does not die."""

    key: JobKey
    attempt: int
    detail: str


class Progressed(Event, frozen=True, kw_only=True):
    """An attempt reports its progress. `only`: the fields that it reports, if the others are to stay."""

    key: JobKey
    attempt: int
    progress: JobProgress
    only: tuple[str, ...] | None = None


class LeasesSeen(Event, frozen=True, kw_only=True):
    """GPUs leased by other daemons: index -> holder. The complete list."""

    foreign: dict[int, str]


class Drain(Event, frozen=True, kw_only=True):
    """Drain (`on`) or resume the machine, or these GPUs. Running jobs continue.

    Survives restarts, unless `passing`: a daemon that is about to exit starts nothing.
    """

    uid: int
    on: bool
    gpus: tuple[int, ...] | None = None
    reason: str = ""
    passing: bool = False


class Reclaimed(Event, frozen=True, kw_only=True):
    """Spot notice: the cloud reclaims the machine, in `left_s` seconds if known. Empty `why`: withdrawn."""

    why: str
    left_s: float | None = None


class Restrict(Event, frozen=True, kw_only=True):
    """Restrict new jobs to these GPUs; None: all. Running jobs keep theirs."""

    uid: int
    allowed: tuple[int, ...] | None


class Foresee(Event, frozen=True, kw_only=True):
    """Record an ETA sample for a queued job; drop samples of jobs that left the queue."""

    key: JobKey
    case: EtaSample | None = None


class SetQuota(Event, frozen=True, kw_only=True):
    """Set the quota of a user or a project; with an empty name, the default for all without their own."""

    uid: int
    scope: str
    name: str
    # None: remove the quota.
    limits: Limits | None


class Reserve(Event, frozen=True, kw_only=True):
    """Reserve GPUs for one user for a time span: these, or any `count` of them."""

    uid: int
    user: str
    gpus: tuple[int, ...] = ()
    count: int = 0
    start: float
    end: float


class ChangeReservation(Event, frozen=True, kw_only=True):
    """Move a GPU reservation to this time span and to these GPUs."""

    uid: int
    id: int
    gpus: tuple[int, ...]
    start: float
    end: float


class Unreserve(Event, frozen=True, kw_only=True):
    """Cancel a GPU reservation."""

    uid: int
    id: int
