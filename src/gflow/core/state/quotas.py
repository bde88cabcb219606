"""Quotas: how many running jobs, running GPUs and waiting jobs a user or a project may have, and has.

A quota delays starts and never stops running jobs. Names are those in the job records. A user or project
without a quota of its own has the default one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gflow.core.ids import TASK_MASK
from gflow.core.model import Job, Spec, links_of, size_of

Scope = Literal["user", "project"]
USER: Scope = "user"
PROJECT: Scope = "project"


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The quota of one user or project; None: not set."""

    max_running_jobs: int | None = None
    max_running_gpus: int | None = None
    max_queued_jobs: int | None = None

    def over(self, other: Limits) -> Limits:
        """These limits, completed by those of `other` where they are not set."""
        own = msgspec.structs.asdict(self)
        return Limits(**{name: getattr(other, name) if own[name] is None else own[name] for name in own})


NO_LIMITS = Limits()


class Quotas(msgspec.Struct, frozen=True, omit_defaults=True):
    """All quotas. The name "" is the default for users or projects without one."""

    users: dict[str, Limits] = {}
    projects: dict[str, Limits] = {}

    def __bool__(self) -> bool:
        return bool(self.users or self.projects)

    def named(self, scope: str) -> dict[str, Limits]:
        return self.users if scope == USER else self.projects

    def of(self, scope: str, name: str) -> Limits:
        """The limits in force for this user or project. A job without a project has no project limits."""
        named = self.named(scope)
        if not named or (scope == PROJECT and not name):
            return NO_LIMITS
        return named.get(name, NO_LIMITS).over(named.get("", NO_LIMITS))

    def over(self, other: Quotas) -> Quotas:
        """These quotas, completed by those of `other` where they are not set."""
        return Quotas(_overlay(self.users, other.users), _overlay(self.projects, other.projects))

    def changed(self, scope: str, name: str, limits: Limits | None) -> Quotas:
        """A copy with other limits for one name. Limits that are not set stay; None removes all of them."""
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
    """What one user or project has at present."""

    __slots__ = ("gpus", "jobs", "waiting")

    def __init__(self) -> None:
        # Running jobs, their GPUs, and waiting jobs. An array counts as one waiting job until it ends; its
        # tasks do not count.
        self.jobs = self.gpus = self.waiting = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and self.figures == other.figures

    @property
    def figures(self) -> tuple[int, int, int]:
        return self.jobs, self.gpus, self.waiting


NOTHING = Usage()


class QuotaUsage:
    """The quotas in force, and what all users and projects have at present."""

    def __init__(self, given: Quotas = Quotas()) -> None:  # noqa: B008 - it is frozen
        # Quotas of the configuration, those set with gctl, and the combination, which is in force.
        self.given = given
        self.said = Quotas()
        self.quotas = given
        self.is_limited = bool(given)
        # By name. Users and projects with no jobs have no entry.
        self.users: dict[str, Usage] = {}
        self.projects: dict[str, Usage] = {}
        # uid -> size of the specs of active jobs, in bytes; tasks share the spec of their array.
        self.bytes: dict[int, int] = {}
        # uid -> number of parents that these jobs name.
        self.links: dict[int, int] = {}

    def say(self, said: Quotas) -> None:
        """Set the quotas made with gctl; they override those of the configuration."""
        self.said, self.quotas = said, said.over(self.given)
        self.is_limited = bool(self.quotas)

    def named(self, scope: str) -> dict[str, Usage]:
        """The usage of all users, or of all projects."""
        return self.users if scope == USER else self.projects

    def of(self, scope: str, name: str) -> Usage:
        """The usage of this user or project."""
        return self.named(scope).get(name, NOTHING)

    def add(self, job: Job, sign: int = 1) -> None:
        """Count a new job, or remove a final one (-1)."""
        if job.key & TASK_MASK:
            return
        self.weigh(job.uid, sign * size_of(job.spec), sign * links_of(job.spec))
        _count(self.users, job.user, 0, 0, sign)
        if project := job.spec.project:
            _count(self.projects, project, 0, 0, sign)

    def weigh(self, uid: int, size: int, links: int) -> None:
        """Count the size and the number of parents of a user's jobs."""
        if size:
            _add(self.bytes, uid, size)
        if links:
            _add(self.links, uid, links)

    def reserve(self, user: str, projects: dict[str, int], count: int, sign: int) -> None:
        """Count the announced jobs of a staged submission as waiting, or take that back (-1)."""
        _count(self.users, user, 0, 0, count)
        for project, number in projects.items():
            _count(self.projects, project, 0, 0, sign * number)

    def run(self, job: Job, sign: int = 1) -> None:
        """Count a job that starts, or remove one that no longer runs (-1)."""
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
    usage = table.get(name)
    if usage is None:
        usage = table[name] = Usage()
    usage.jobs += jobs
    usage.gpus += gpus
    usage.waiting += waiting
    if not (usage.jobs or usage.gpus or usage.waiting):
        del table[name]


def exceeded(usages: QuotaUsage, job: Job, usual: int = 0, *, is_private: bool = False) -> str | None:
    """The quota that keeps a job from starting, in words; None: no quota does.

    `usual`: the limit of running jobs for users without a quota; 0: none. `is_private`: omit the usage of a
    project, because it includes that of other users.
    """
    limits = usages.quotas.of(USER, job.user)
    most = limits.max_running_jobs
    if most is None and usual:
        most = usual
    why = _exceeds(usages.of(USER, job.user), most, limits, job, job.user)
    project = job.spec.project
    if why is None and project:
        limits = usages.quotas.of(PROJECT, project)
        usage = usages.of(PROJECT, project)
        why = _exceeds(usage, limits.max_running_jobs, limits, job, f"project {project}")
        if why is not None and is_private:
            why = f"the quota of project {project} is used up"
    return why and (never_fits(usages.quotas, job.user, job.spec, is_private=is_private) or why)


def never_fits(quotas: Quotas, user: str, spec: Spec, *, is_private: bool = False) -> str | None:
    """Why a quota keeps such a job from starting even if nothing else runs; None: no quota does.

    `is_private`: omit the limit of a project.
    """
    for scope, name, whose in ((USER, user, user), (PROJECT, spec.project, f"project {spec.project}")):
        limits = quotas.of(scope, name)
        if limits.max_running_jobs == 0:
            return f"the quota of {whose} allows no running jobs"
        most = limits.max_running_gpus
        if most is not None and spec.gpus > most:
            asked = f"the job asks for {spec.gpus} GPU{'s' * (spec.gpus > 1)}"
            if scope == PROJECT and is_private:
                return f"{asked}, more than the quota of {whose} allows"
            return f"{asked}, and the quota of {whose} is {most}"
    return None


def _exceeds(usage: Usage, most: int | None, limits: Limits, job: Job, whose: str) -> str | None:
    if most is not None and usage.jobs >= most:
        return f"{whose} runs {usage.jobs} of {most} jobs"
    most, wanted = limits.max_running_gpus, job.spec.gpus
    if most is not None and wanted and usage.gpus + wanted > most:
        return f"{whose} has {usage.gpus} of {most} GPUs, and this needs {wanted}"
    return None
