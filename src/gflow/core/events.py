"""What can happen. Every event says when, on both clocks; the engine asks nobody else."""

from __future__ import annotations

from typing import Any

import msgspec

from gflow.core.forecast.calibration import EtaSample
from gflow.core.ids import JobKey
from gflow.core.model import Block, Gpu, Idle, JobProgress, JobState, Moment, Spec
from gflow.core.state.quotas import Limits


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events."""

    at: Moment


class Submit(Event, frozen=True, kw_only=True):
    """Somebody wants these jobs. All are taken or none."""

    uid: int
    user: str
    # Parents are resolved: the keys in `depends_on` and `depends_any` mean jobs.
    specs: tuple[Spec, ...]
    # How parents that left memory ended; a parent that is neither here nor active does not exist.
    outcomes: dict[JobKey, JobState]
    # Parents that the submitter is not to know of: judged as if they did not exist.
    hidden: frozenset[JobKey] = frozenset()


class Open(Event, frozen=True, kw_only=True):
    """A person wants so many jobs, which come in parts; of these projects so many."""

    uid: int
    user: str
    count: int
    projects: dict[str, int] = {}
    # Where it came from, for the jobs' stories.
    origin: str = "daemon"


class Stage(Event, frozen=True, kw_only=True):
    """The next jobs of an open submission. As in `Submit`, parents are resolved."""

    first: int
    specs: tuple[Spec, ...]
    outcomes: dict[JobKey, JobState]
    hidden: frozenset[JobKey] = frozenset()


class Close(Event, frozen=True, kw_only=True):
    """All jobs of an open submission have come."""

    uid: int
    first: int


class Abandon(Event, frozen=True, kw_only=True):
    """A submission that is not closed comes to nothing."""

    first: int


class Arrive(Event, frozen=True, kw_only=True):
    """Time to put some of those that arrive where they wait."""

    most: int
    # Of this submission; 0, or if none of it is left: whoever is first.
    first: int = 0


class UserAction(Event, frozen=True, kw_only=True):
    """What somebody does to jobs: their own, or everybody's if they govern the machine."""

    uid: int
    governs: bool = False
    keys: tuple[JobKey, ...]


class Claim(Event, frozen=True, kw_only=True):
    """This will be done to these jobs, in parts: it is judged now, and none of them starts meanwhile.

    `size`, `links`: what earlier parts of the same will add to the caller's jobs.
    """

    deed: UserAction
    size: int = 0
    links: int = 0


class Unclaim(Event, frozen=True, kw_only=True):
    """Nothing more will be done to these jobs."""

    keys: tuple[JobKey, ...]


class Cancel(UserAction, frozen=True, kw_only=True):
    """Somebody wants these jobs gone; `now` skips the grace time."""

    now: bool = False


class Hold(UserAction, frozen=True, kw_only=True):
    """Somebody wants these waiting jobs not to start."""


class Release(UserAction, frozen=True, kw_only=True):
    """Somebody takes a hold back; with `begin_at`, not before that time."""

    begin_at: float | None = None


class Update(UserAction, frozen=True, kw_only=True):
    """Somebody changes what was asked for. `fields` are fields of Spec, checked by the table's readers."""

    fields: dict[str, Any]
    outcomes: dict[JobKey, JobState]
    hidden: frozenset[JobKey] = frozenset()
    # Seconds to add to the time limit that each of them has.
    extend_s: int = 0
    # The group of those that get a cap and have none; 0: that of the first of them.
    group: int = 0


class Exited(Event, frozen=True, kw_only=True):
    """Nothing of this attempt lives any more. `problem` is set when it ended without an exit."""

    key: JobKey
    attempt: int
    code: int | None
    signal: int | None = None
    problem: str = ""
    # What it used; both 0 when nobody could measure it.
    cpu_ms: int = 0
    peak_kib: int = 0


class RemoteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a target says of an attempt that it has: why it waits there, or that it runs."""

    key: JobKey
    attempt: int
    running: bool = False
    reason: str = ""
    id: str = ""
    nodes: str = ""


class Seen(Event, frozen=True, kw_only=True):
    """What is new about jobs that other targets have."""

    sightings: tuple[RemoteStatus, ...]


class Tick(Event, frozen=True, kw_only=True):
    """Time has passed: something may be due."""


class GpusSeen(Event, frozen=True, kw_only=True):
    """The GPUs of this machine, as they are now.

    `blocked`: those that get no new jobs, and why. `taken`: MiB on them that processes use which are
    not ours and tolerated. `trouble`: why nobody can tell what GPUs there are. `faults`: cards (by UUID)
    that are broken until somebody says otherwise; None: nobody has looked, so it is as it was.
    """

    gpus: tuple[Gpu, ...]
    blocked: dict[int, Block] = {}
    taken: dict[int, int] = {}
    trouble: str = ""
    faults: dict[str, str] | None = None


class Overran(Event, frozen=True, kw_only=True):
    """A job that shares a GPU uses more of its memory than it said."""

    key: JobKey
    attempt: int
    gpu: int
    used_mib: int


class IdleSeen(Event, frozen=True, kw_only=True):
    """All jobs that have not used GPUs of theirs for longer than is fine. Those not named use theirs."""

    idle: dict[JobKey, Idle]


class Idled(Event, frozen=True, kw_only=True):
    """An attempt has used none of its GPUs for so long."""

    key: JobKey
    attempt: int
    idle: Idle


class Stuck(Event, frozen=True, kw_only=True):
    """An attempt was killed, and one of its processes does not die."""

    key: JobKey
    attempt: int
    detail: str


class Progressed(Event, frozen=True, kw_only=True):
    """An attempt says how far it is."""

    key: JobKey
    attempt: int
    headway: JobProgress


class LeasesSeen(Event, frozen=True, kw_only=True):
    """GPUs that somebody else's daemon has given out: index -> who. All others are ours to give."""

    foreign: dict[int, str]


class Drain(Event, frozen=True, kw_only=True):
    """Nothing more starts, at all or on these GPUs, while `on`. What runs goes on.

    Kept through restarts, unless it is `passing`: a daemon that is about to leave starts nothing.
    """

    uid: int
    on: bool
    gpus: tuple[int, ...] | None = None
    reason: str = ""
    passing: bool = False


class Reclaimed(Event, frozen=True, kw_only=True):
    """The cloud takes this machine away, in `left_s` seconds if it said so. Without `why`: it does not."""

    why: str
    left_s: float | None = None


class Restrict(Event, frozen=True, kw_only=True):
    """New jobs may get only these GPUs; None: all. Running jobs keep theirs."""

    uid: int
    allowed: tuple[int, ...] | None


class Foresee(Event, frozen=True, kw_only=True):
    """What was told to a job that waits, to be compared with what comes. Who waits no more is forgotten."""

    key: JobKey
    case: EtaSample | None = None


class SetQuota(Event, frozen=True, kw_only=True):
    """What a person or a project may have at once; without a name, each that is not named."""

    uid: int
    scope: str
    name: str
    # None: no quota any more.
    limits: Limits | None


class Reserve(Event, frozen=True, kw_only=True):
    """GPUs for one person alone, for some time: these, or so many."""

    uid: int
    user: str
    gpus: tuple[int, ...] = ()
    count: int = 0
    start: float
    end: float


class Unreserve(Event, frozen=True, kw_only=True):
    """A reservation is not needed any more."""

    uid: int
    id: int
