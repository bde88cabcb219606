"""What people see of jobs that are not theirs: name, user, state and resources, and never what is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec
from starlette.requests import Request

from gflow.core.forecast.explain import Blocker
from gflow.core.ids import JobKey, parse_label
from gflow.core.model import CUT_OFF, PREEMPTED, Job, Spec
from gflow.daemon.api.permissions import is_operator, person_behind, sees_names
from gflow.daemon.auth.users import Person, user_name
from gflow.daemon.context import NAMELESS, context_of
from gflow.text.gpus import job_title
from gflow.text.queue import Entry

# All other fields are their owner's alone, those to come as well.
PUBLIC = (
    "name", "gpus", "shared", "gpu_memory_mib", "gpu_type", "cpus", "memory_mib", "priority", "time_limit_s",
    "begin_at", "hold", "depends_on", "depends_any", "no_auto_cancel", "array", "max_concurrent", "group",
    "requeue", "max_retries", "project",
)  # fmt: skip
START_FAILED = "StartFailed"
# Where the daemon's own sentences name a job.
_NAMED = re.compile(rf"(job |{PREEMPTED}|{CUT_OFF})([0-9]+(?:_[0-9]+)?)\b")
ANOTHER = "another job"


class Viewer:
    """Somebody who looks at jobs."""

    def __init__(
        self,
        person: Person,
        *,
        sees_all: bool,
        sees_names: bool,
        governs: bool = True,
        job: Callable[[JobKey], Job | None] = lambda key: None,
    ) -> None:
        self.person = person
        # Looks a job up.
        self._job = job
        # Whether what is about the whole machine, and no job, is shown in full.
        self.governs = governs
        # Whether nothing is hidden; whether it is shown that there are jobs of others, and whose.
        self.sees_all = sees_all
        self.sees_names = sees_names

    @property
    def uid(self) -> int:
        return self.person.uid

    @property
    def user(self) -> str:
        """Their own name."""
        return user_name(self.uid)

    @property
    def kind(self) -> tuple[Person, bool, bool, bool]:
        """Whoever has the same sees the same."""
        return self.person, self.sees_all, self.sees_names, self.governs

    def knows(self, job: Job) -> bool:
        """Whether everything about this job is shown."""
        return self.sees_all or self.person.owns(job)

    def finds(self, job: Job) -> bool:
        """Whether this job is shown at all."""
        return self.sees_names or self.knows(job)

    def said(self, text: str) -> str:
        """A sentence of the daemon's without the ids of jobs that are hidden, or are not there."""
        return text if self.sees_names else _NAMED.sub(self._unnamed, text)

    def _unnamed(self, found: re.Match[str]) -> str:
        key = parse_label(found[2])
        job = None if key is None else self._job(key)
        return found[0] if job is not None and self.finds(job) else found[1].removesuffix("job ") + ANOTHER

    def title(self, job: Job) -> str:
        """The id and name of a job that has GPUs."""
        return job_title(job) if self.finds(job) else ANOTHER

    def shown(self, job: Job) -> Job:
        """The job, as much of it as is to be seen."""
        if self.knows(job):
            reason = self.said(job.reason)
            return job if reason == job.reason else msgspec.structs.replace(job, reason=reason)
        public = {name: getattr(job.spec, name) for name in PUBLIC}
        user, reason = job.user, job.reason
        if not self.sees_names:
            public["name"], user = NAMELESS, NAMELESS
        if reason.startswith(START_FAILED):  # the rest may name a path
            reason = START_FAILED
        # When its GPUs will be free is everybody's business; how well it learns is not.
        headway = job.headway and msgspec.structs.replace(job.headway, loss=None, samples_per_s=0.0)
        return msgspec.structs.replace(
            job, spec=Spec(command=(), cwd="", **public), user=user, reason=reason, headway=headway
        )

    def entries(self, entries: Iterable[Entry]) -> Iterable[Entry]:
        if self.sees_all:
            return entries
        return ((self.shown(job), self.why(why)) for job, why in entries)

    def why(self, why: Blocker | None) -> Blocker | None:
        """Why a job waits, as much of it as is to be known."""
        return why if why is None or self.sees_names else Blocker(why.code, self.said(why.detail))

    def name(self, user: str) -> str:
        """A person, as far as they are to be known."""
        return user if self.sees_names or user == self.user else NAMELESS

    @property
    def only_users(self) -> frozenset[str]:
        """Whose jobs a listing is about; empty: everybody's."""
        return frozenset() if self.sees_names else frozenset({self.user})


def viewer(request: Request) -> Viewer:
    settings, uid = context_of(request).settings, request.scope["state"]["uid"]
    return Viewer(
        person_behind(request),
        sees_all=not settings.is_system or uid == 0,
        sees_names=sees_names(request),
        governs=is_operator(request),
        job=context_of(request).job,
    )
