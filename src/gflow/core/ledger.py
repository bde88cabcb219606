"""What people and projects may have at once, what of theirs runs, and what waits."""

from __future__ import annotations

from gflow.core.ids import TASK_MASK
from gflow.core.model import Job, links_of, size_of
from gflow.core.quotas import PROJECT, USER, Limits, Quotas


class Having:
    """What one of them has."""

    __slots__ = ("gpus", "jobs", "waiting")

    def __init__(self) -> None:
        # Jobs that run and their GPUs; jobs that wait: an array counts once until it is over, no task does.
        self.jobs = self.gpus = self.waiting = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Having) and self.figures == other.figures

    @property
    def figures(self) -> tuple[int, int, int]:
        return self.jobs, self.gpus, self.waiting


NOTHING = Having()


class Ledger:
    """All of it."""

    def __init__(self, given: Quotas = Quotas()) -> None:  # noqa: B008 - it is frozen
        # What the configuration says, what people said since, and what holds.
        self.given = given
        self.said = Quotas()
        self.quotas = given
        self.is_limited = bool(given)
        # By name. Whoever has nothing is not there.
        self.users: dict[str, Having] = {}
        self.projects: dict[str, Having] = {}
        # Bytes of what people's jobs are made of, by uid; tasks share those of their array.
        self.bytes: dict[int, int] = {}
        # How many parents they name, by uid.
        self.links: dict[int, int] = {}

    def say(self, said: Quotas) -> None:
        """What people said holds over what the configuration says."""
        self.said, self.quotas = said, said.over(self.given)
        self.is_limited = bool(self.quotas)

    def named(self, scope: str) -> dict[str, Having]:
        """What all people have, or all projects."""
        return self.users if scope == USER else self.projects

    def of(self, scope: str, name: str) -> Having:
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


def _count(table: dict[str, Having], name: str, jobs: int, gpus: int, waiting: int) -> None:
    having = table.get(name)
    if having is None:
        having = table[name] = Having()
    having.jobs += jobs
    having.gpus += gpus
    having.waiting += waiting
    if not (having.jobs or having.gpus or having.waiting):
        del table[name]


def exceeded(ledger: Ledger, job: Job, usual: int = 0, *, is_private: bool = False) -> str | None:
    """What keeps a job from starting, in words; None: no quota does.

    `usual`: jobs that a person may run of whom no quota says how many; 0: any number. `is_private`: what a
    project has, of which others are members too, is not told.
    """
    limits = ledger.quotas.of(USER, job.user)
    most = limits.max_running_jobs
    if most is None and usual:
        most = usual
    why = _over(ledger.of(USER, job.user), most, limits, job, job.user)
    project = job.spec.project
    if why is None and project:
        limits = ledger.quotas.of(PROJECT, project)
        having = ledger.of(PROJECT, project)
        why = _over(having, limits.max_running_jobs, limits, job, f"project {project}")
        if why is not None and is_private:
            why = f"the quota of project {project} is used up"
    return why


def _over(having: Having, most: int | None, limits: Limits, job: Job, whose: str) -> str | None:
    if most is not None and having.jobs >= most:
        return f"{whose} runs {having.jobs} of {most} jobs"
    most, wanted = limits.max_running_gpus, job.spec.gpus
    if most is not None and wanted and having.gpus + wanted > most:
        return f"{whose} has {having.gpus} of {most} GPUs, and this needs {wanted}"
    return None
