"""How much one person or one project may have at once.

A quota holds back starts, never what runs. Names are as the jobs carry them; who is not named has
what is said for everybody.

What people and projects may have at once, what of theirs runs, and what waits.
"""

from __future__ import annotations

import msgspec

from gflow.core.ids import TASK_MASK
from gflow.core.model import Job, links_of, size_of

USER, PROJECT = "user", "project"


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one of them may have at once; None: not said."""

    max_running_jobs: int | None = None
    max_running_gpus: int | None = None
    max_queued_jobs: int | None = None

    def over(self, other: Limits) -> Limits:
        """These, and where nothing is said the other's."""
        own = msgspec.structs.asdict(self)
        return Limits(**{name: getattr(other, name) if own[name] is None else own[name] for name in own})


NO_LIMITS = Limits()


class Quotas(msgspec.Struct, frozen=True, omit_defaults=True):
    """All quotas. The name "" stands for everybody who is not named."""

    users: dict[str, Limits] = {}
    projects: dict[str, Limits] = {}

    def __bool__(self) -> bool:
        return bool(self.users or self.projects)

    def named(self, scope: str) -> dict[str, Limits]:
        return self.users if scope == USER else self.projects

    def of(self, scope: str, name: str) -> Limits:
        """What holds for this person or project; a job without a project belongs to none."""
        named = self.named(scope)
        if not named or (scope == PROJECT and not name):
            return NO_LIMITS
        return named.get(name, NO_LIMITS).over(named.get("", NO_LIMITS))

    def over(self, other: Quotas) -> Quotas:
        """These, and where nothing is said the other's."""
        return Quotas(_overlay(self.users, other.users), _overlay(self.projects, other.projects))

    def changed(self, scope: str, name: str, limits: Limits | None) -> Quotas:
        """With other limits for one of them: those not said stay; None takes all away."""
        named = dict(self.named(scope))
        if limits is None:
            named.pop(name, None)
        else:
            named[name] = limits.over(named.get(name, NO_LIMITS))
        return Quotas(named, self.projects) if scope == USER else Quotas(self.users, named)


def _overlay(first: dict[str, Limits], second: dict[str, Limits]) -> dict[str, Limits]:
    names = {**second, **first}
    return {name: first.get(name, NO_LIMITS).over(second.get(name, NO_LIMITS)) for name in names}


class Usage:
    """What one of them has."""

    __slots__ = ("gpus", "jobs", "waiting")

    def __init__(self) -> None:
        # Jobs that run and their GPUs; jobs that wait: an array counts once until it is over, no task does.
        self.jobs = self.gpus = self.waiting = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and self.figures == other.figures

    @property
    def figures(self) -> tuple[int, int, int]:
        return self.jobs, self.gpus, self.waiting


NOTHING = Usage()


class QuotaUsage:
    """All of it."""

    def __init__(self, given: Quotas = Quotas()) -> None:  # noqa: B008 - it is frozen
        # What the configuration says, what people said since, and what holds.
        self.given = given
        self.said = Quotas()
        self.quotas = given
        self.is_limited = bool(given)
        # By name. Whoever has nothing is not there.
        self.users: dict[str, Usage] = {}
        self.projects: dict[str, Usage] = {}
        # Bytes of what people's jobs are made of, by uid; tasks share those of their array.
        self.bytes: dict[int, int] = {}
        # How many parents they name, by uid.
        self.links: dict[int, int] = {}

    def say(self, said: Quotas) -> None:
        """What people said holds over what the configuration says."""
        self.said, self.quotas = said, said.over(self.given)
        self.is_limited = bool(self.quotas)

    def named(self, scope: str) -> dict[str, Usage]:
        """What all people have, or all projects."""
        return self.users if scope == USER else self.projects

    def of(self, scope: str, name: str) -> Usage:
        """What this one has."""
        return self.named(scope).get(name, NOTHING)

    def add(self, job: Job, sign: int = 1) -> None:
        """A job becomes known, or is final (-1)."""
        if job.key & TASK_MASK:
            return
        self.weigh(job.uid, sign * size_of(job.spec), sign * links_of(job.spec))
        _count(self.users, job.user, 0, 0, sign)
        if project := job.spec.project:
            _count(self.projects, project, 0, 0, sign)

    def weigh(self, uid: int, size: int, links: int) -> None:
        """Count what a person's jobs are made of."""
        if size:
            _add(self.bytes, uid, size)
        if links:
            _add(self.links, uid, links)

    def reserve(self, user: str, projects: dict[str, int], count: int, sign: int) -> None:
        """Jobs that are to come wait already; or they do not come (-1)."""
        _count(self.users, user, 0, 0, count)
        for project, number in projects.items():
            _count(self.projects, project, 0, 0, sign * number)

    def run(self, job: Job, sign: int = 1) -> None:
        """A job starts, or runs no longer (-1)."""
        gpus, waits = sign * job.spec.gpus, 0 if job.key & TASK_MASK else -sign
        _count(self.users, job.user, sign, gpus, waits)
        if project := job.spec.project:
            _count(self.projects, project, sign, gpus, waits)


def _add(table: dict[int, int], uid: int, more: int) -> None:
    now = table.get(uid, 0) + more
    if now:
        table[uid] = now
    else:
        del table[uid]


def _count(table: dict[str, Usage], name: str, jobs: int, gpus: int, waiting: int) -> None:
    having = table.get(name)
    if having is None:
        having = table[name] = Usage()
    having.jobs += jobs
    having.gpus += gpus
    having.waiting += waiting
    if not (having.jobs or having.gpus or having.waiting):
        del table[name]


def exceeded(ledger: QuotaUsage, job: Job, usual: int = 0, *, is_private: bool = False) -> str | None:
    """What keeps a job from starting, in words; None: no quota does.

    `usual`: jobs that a person may run of whom no quota says how many; 0: any number. `is_private`: what a
    project has, of which others are members too, is not told.
    """
    limits = ledger.quotas.of(USER, job.user)
    most = limits.max_running_jobs
    if most is None and usual:
        most = usual
    why = _exceeds(ledger.of(USER, job.user), most, limits, job, job.user)
    project = job.spec.project
    if why is None and project:
        limits = ledger.quotas.of(PROJECT, project)
        having = ledger.of(PROJECT, project)
        why = _exceeds(having, limits.max_running_jobs, limits, job, f"project {project}")
        if why is not None and is_private:
            why = f"the quota of project {project} is used up"
    return why


def _exceeds(having: Usage, most: int | None, limits: Limits, job: Job, whose: str) -> str | None:
    if most is not None and having.jobs >= most:
        return f"{whose} runs {having.jobs} of {most} jobs"
    most, wanted = limits.max_running_gpus, job.spec.gpus
    if most is not None and wanted and having.gpus + wanted > most:
        return f"{whose} has {having.gpus} of {most} GPUs, and this needs {wanted}"
    return None
