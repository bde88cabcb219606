"""Effects: the decisions of a step. The daemon commits them first and carries them out afterwards."""

from __future__ import annotations

import msgspec

from gflow.core.ids import JobKey
from gflow.core.key_table import KeyTable
from gflow.core.model import Job

# Audit entries for what the sender of the event did, as opposed to the scheduler in consequence.
PERSONAL = frozenset(
    {
        "submitted",
        "cancel",
        "signal",
        "held",
        "released",
        "updated",
        "reservation created",
        "reservation cancelled",
    }
)


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Base of all effects."""


class Save(Effect, frozen=True, gc=False):
    """Save this job. The change must be durable before it is visible to clients."""

    job: Job


class AddAuditEntry(Effect, frozen=True, gc=False):
    """Add an entry to the audit log of a job, or of the machine (`key` None): what happened, and why."""

    key: JobKey | None
    what: str
    detail: str = ""
    # The acting user and the origin, if they differ from the sender of the event.
    uid: int | None = None
    origin: str = ""

    @property
    def is_personal(self) -> bool:
        """Whether the sender of the event did this, as opposed to the scheduler in consequence."""
        return self.what in PERSONAL


class Ran(Effect, frozen=True, gc=False):
    """Record an attempt that is followed by another; the job record is reused for the next one."""

    key: JobKey
    attempt: int
    started_at: float
    finished_at: float
    gpu_ids: tuple[int, ...]
    # Duration on the boot clock.
    ran_s: float


class Keep(Effect, frozen=True, gc=False):
    """Save a named value that must survive a restart."""

    name: str
    value: str


class Accepted(Effect, frozen=True, gc=False):
    """The answer to `Submit`: the keys of the new jobs, in the order of the request."""

    keys: tuple[JobKey, ...]


class Reserved(Effect, frozen=True, gc=False):
    """The answer to `Open`: the number of its first job."""

    first: int


class Staged(Effect, frozen=True, gc=False):
    """Save a job of an open submission, hidden from all readers."""

    job: Job


class Closed(Effect, frozen=True, gc=False):
    """The jobs of this submission are visible from now on."""

    first: int


class Abandoned(Effect, frozen=True):
    """The submission is removed, with the jobs that were staged."""

    first: int
    jobs: KeyTable[Job]


class SubmissionArrived(Effect, frozen=True, gc=False):
    """All jobs of this submission have arrived in the queue."""

    first: int


class Claimed(Effect, frozen=True, gc=False):
    """The answer to `Claim`: bytes and dependency links that the action adds to the user's jobs."""

    size: int
    links: int


class Start(Effect, frozen=True, gc=False):
    """Launch this attempt on its target."""

    key: JobKey
    attempt: int


class Stop(Effect, frozen=True, gc=False):
    """Stop an attempt by the stop contract: TERM, grace time, KILL of everything that the job started.

    `now` skips the grace time. `grace_s` overrides the job's own; 0: the job's own.
    """

    key: JobKey
    attempt: int
    now: bool = False
    grace_s: int = 0


class Withdraw(Effect, frozen=True, gc=False):
    """Withdraw the job from its target if it has not begun there. It then ends with `WITHDRAWN`."""

    key: JobKey
    attempt: int


class Warn(Effect, frozen=True, gc=False):
    """Send this signal to the job: its time limit is near, or a user asked for it.

    A negative number: only to the job's first process.
    """

    key: JobKey
    attempt: int
    signal: int


class Forget(Effect, frozen=True, gc=False):
    """The end of this attempt is committed: the target may delete its run record."""

    key: JobKey
    attempt: int
