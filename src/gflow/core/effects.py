"""What the engine decided. The daemon first makes it durable, then carries it out."""

from __future__ import annotations

import msgspec

from gflow.core.ids import JobKey
from gflow.core.model import Job

PERSONAL = frozenset(
    {"submitted", "cancel", "held", "released", "updated", "reservation created", "reservation cancelled"}
)


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Base of all effects."""


class Save(Effect, frozen=True, gc=False):
    """This job changed and must be durable before anybody hears of it."""

    job: Job


class AddAuditEntry(Effect, frozen=True, gc=False):
    """A line of a job's story: what happened to it, and why. Without a job: of the machine's."""

    key: JobKey | None
    what: str
    detail: str = ""
    # Who did it and from where, if that was not the sender of the event.
    uid: int | None = None
    origin: str = ""

    @property
    def is_personal(self) -> bool:
        """Whether whoever sent the event did this, and not the scheduler in consequence."""
        return self.what in PERSONAL


class Ran(Effect, frozen=True, gc=False):
    """An attempt that was not the job's last: its record goes on to the next one."""

    key: JobKey
    attempt: int
    started_at: float
    finished_at: float
    gpu_ids: tuple[int, ...]
    # On the boot clock.
    ran_s: float


class Keep(Effect, frozen=True, gc=False):
    """A setting that must survive a restart."""

    name: str
    value: str


class Accepted(Effect, frozen=True, gc=False):
    """The answer to a submission: the new jobs, in the order asked."""

    keys: tuple[JobKey, ...]


class Reserved(Effect, frozen=True, gc=False):
    """The answer to `Open`: the number of its first job."""

    first: int


class Staged(Effect, frozen=True, gc=False):
    """A job of an open submission: to be durable, and hidden from all readers."""

    job: Job


class Closed(Effect, frozen=True, gc=False):
    """The jobs of this submission are jobs like all others now."""

    first: int


class Abandoned(Effect, frozen=True):
    """This submission comes to nothing; the jobs that were made of it."""

    first: int
    jobs: dict[JobKey, Job]


class Settled(Effect, frozen=True, gc=False):
    """The last job of this submission has arrived."""

    first: int


class Claimed(Effect, frozen=True, gc=False):
    """The answer to `Claim`: what it will add to the caller's jobs."""

    size: int
    links: int


class Start(Effect, frozen=True, gc=False):
    """Launch this attempt."""

    key: JobKey
    attempt: int


class Stop(Effect, frozen=True, gc=False):
    """Stop contract: TERM, grace, KILL of everything the job started; `now` skips the grace. `grace_s`: so
    long, whatever the job asked for; 0: as it asked.
    """

    key: JobKey
    attempt: int
    now: bool = False
    grace_s: int = 0


class Recall(Effect, frozen=True, gc=False):
    """Take it back from where it waits, if it has not begun. Its end is then `RECALLED`."""

    key: JobKey
    attempt: int


class Warn(Effect, frozen=True, gc=False):
    """Send this signal to the job: its time is nearly up."""

    key: JobKey
    attempt: int
    signal: int


class Forget(Effect, frozen=True, gc=False):
    """The end of this attempt is recorded here: the runner may drop its own record."""

    key: JobKey
    attempt: int
