"""How much one person or one project may have at once.

A quota holds back starts, never what runs. Names are as the jobs carry them; who is not named has
what is said for everybody.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from gflow.core.model import Job

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
        return Quotas(_over(self.users, other.users), _over(self.projects, other.projects))

    def changed(self, scope: str, name: str, limits: Limits | None) -> Quotas:
        """With other limits for one of them: those not said stay; None takes all away."""
        named = dict(self.named(scope))
        if limits is None:
            named.pop(name, None)
        else:
            named[name] = limits.over(named.get(name, NO_LIMITS))
        return Quotas(named, self.projects) if scope == USER else Quotas(self.users, named)


def _over(first: dict[str, Limits], second: dict[str, Limits]) -> dict[str, Limits]:
    names = {**second, **first}
    return {name: first.get(name, NO_LIMITS).over(second.get(name, NO_LIMITS)) for name in names}


class Ledger:
    """What people and projects may have, what of theirs runs, and what waits."""

    def __init__(self, given: Quotas = Quotas()) -> None:  # noqa: B008 - it is frozen
        # What the configuration says, what people said since, and what holds.
        self.given = given
        self.said = Quotas()
        self.quotas = given
        self.is_limited = bool(given)
        self.jobs: Counter[tuple[str, str]] = Counter()
        self.gpus: Counter[tuple[str, str]] = Counter()
        # Jobs that wait; an array counts once until it is over, a task of it does not.
        self.waiting: Counter[tuple[str, str]] = Counter()
        # Bytes of what people's jobs are made of; tasks share those of their array.
        self.bytes: Counter[int] = Counter()

    def say(self, said: Quotas) -> None:
        """What people said holds over what the configuration says."""
        self.said, self.quotas = said, said.over(self.given)
        self.is_limited = bool(self.quotas)

    def add(self, job: Job, sign: int = 1) -> None:
        """A job becomes known, or is final (-1)."""
        if job.task is None:
            size = job.spec.size
            if size:
                _count(self.bytes, job.uid, sign * size)
            for one in owners(job):
                _count(self.waiting, one, sign)

    def run(self, job: Job, sign: int = 1) -> None:
        """A job starts, or runs no longer (-1)."""
        gpus, is_counted = job.spec.gpus, job.task is None
        for one in owners(job):
            _count(self.jobs, one, sign)
            if gpus:
                _count(self.gpus, one, sign * gpus)
            if is_counted:
                _count(self.waiting, one, -sign)


def owners(job: Job) -> tuple[tuple[str, str], ...]:
    """Whose quotas a job counts against."""
    project = job.spec.project
    return ((USER, job.user), (PROJECT, project)) if project else ((USER, job.user),)


def exceeded(ledger: Ledger, job: Job, usual: int = 0) -> str | None:
    """What keeps a job from starting, in words; None: no quota does.

    `usual`: jobs that a person may run of whom no quota says how many; 0: any number.
    """
    quotas = ledger.quotas
    for scope, name in owners(job):
        limits, one = quotas.of(scope, name), (scope, name)
        whose = name if scope == USER else f"project {name}"
        most = limits.max_running_jobs
        if most is None and scope == USER and usual:
            most = usual
        if most is not None and ledger.jobs[one] >= most:
            return f"{whose} runs {ledger.jobs[one]} of {most} jobs"
        most = limits.max_running_gpus
        if most is not None and job.spec.gpus and ledger.gpus[one] + job.spec.gpus > most:
            return f"{whose} has {ledger.gpus[one]} of {most} GPUs, and this needs {job.spec.gpus}"
    return None


def _count(counter: Counter[Any], one: Any, change: int) -> None:
    now = counter.get(one, 0) + change
    if now:
        counter[one] = now
    else:
        counter.pop(one, None)
