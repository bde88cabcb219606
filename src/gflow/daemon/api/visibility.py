"""Redaction of other users' jobs: they show name, user, state and resources, never the command.

With `people.privacy = "private"` name and user are hidden as well, and the job is not listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec
from starlette.requests import Request

from gflow.core.forecast.explain import Blocker
from gflow.core.ids import JobKey, parse_label
from gflow.core.model import Job, Spec
from gflow.core.reasons import Reason, ReasonKind
from gflow.daemon.api.permissions import caller_as_owner, is_operator, sees_names
from gflow.daemon.auth.users import JobOwner, user_name
from gflow.daemon.context import NAMELESS, context_of
from gflow.options.rules import PUBLIC_FIELDS
from gflow.text.gpus import job_title
from gflow.text.queue import Entry

# Fields of a spec that other users see. Of the fields that no option fills: the group and the name.
PUBLIC = PUBLIC_FIELDS | {"group", "default_name"}
# A job id in a text that the daemon wrote.
_NAMED = re.compile(
    rf"(job |{ReasonKind.PREEMPTED.value}: |{ReasonKind.DEPENDENCY_FAILED.value}:)([0-9]+(?:_[0-9]+)?)\b"
)
ANOTHER = "another job"


class Viewer:
    """The caller's view of jobs: decides which fields are shown, and redacts the others."""

    def __init__(
        self,
        caller: JobOwner,
        *,
        sees_all: bool,
        sees_names: bool,
        is_operator: bool = True,
        job: Callable[[JobKey], Job | None] = lambda key: None,
    ) -> None:
        self.caller = caller
        # Looks up a job by its key.
        self._job = job
        # Whether entries about the machine, not about a job, are shown in full.
        self.is_operator = is_operator
        # sees_all: nothing is redacted. sees_names: other users' jobs are listed, with their owners.
        self.sees_all = sees_all
        self.sees_names = sees_names

    @property
    def uid(self) -> int:
        return self.caller.uid

    @property
    def user(self) -> str:
        """The user name of the caller."""
        return user_name(self.uid)

    @property
    def cache_key(self) -> tuple[JobOwner, bool, bool, bool]:
        """Viewers with equal keys get identical views."""
        return self.caller, self.sees_all, self.sees_names, self.is_operator

    def sees_details(self, job: Job) -> bool:
        """Whether everything about this job is shown."""
        return self.sees_all or self.caller.owns(job)

    def sees_job(self, job: Job) -> bool:
        """Whether this job is shown at all."""
        return self.sees_names or self.sees_details(job)

    def redact_text(self, text: str) -> str:
        """Replace ids of jobs that are hidden, or do not exist, in a text that the daemon wrote."""
        return text if self.sees_names else _NAMED.sub(self._redact_id, text)

    def _redact_id(self, found: re.Match[str]) -> str:
        key = parse_label(found[2])
        if key is not None and self._sees_key(key):
            return found[0]
        return found[1].removesuffix("job ") + ANOTHER

    def _sees_key(self, key: JobKey) -> bool:
        job = self._job(key)
        return job is not None and self.sees_job(job)

    def redact_reason(self, reason: Reason) -> Reason:
        """The reason without the id of another job that is hidden or does not exist."""
        if self.sees_names or not reason:
            return reason
        if reason.job:
            return reason if self._sees_key(reason.job) else Reason(reason.kind, ANOTHER)
        return Reason(reason.kind, self.redact_text(reason.detail))

    def title(self, job: Job) -> str:
        """The id and name of a job that holds GPUs; a placeholder if the job is hidden."""
        return job_title(job) if self.sees_job(job) else ANOTHER

    def redact_job(self, job: Job) -> Job:
        """The job as the caller sees it: `job` itself for its owner, else a copy without private fields."""
        if self.sees_details(job):
            reason = self.redact_reason(job.reason)
            return job if reason == job.reason else msgspec.structs.replace(job, reason=reason)
        public = {name: getattr(job.spec, name) for name in PUBLIC}
        user, reason = job.user, job.reason
        if not self.sees_names:
            public["name"], user = NAMELESS, NAMELESS
        if reason.kind is ReasonKind.START_FAILED:  # the detail may name a path
            reason = Reason(ReasonKind.START_FAILED)
        # Progress tells when the GPUs become free, so it stays; training results are private.
        report = job.progress_report and msgspec.structs.replace(
            job.progress_report, loss=None, samples_per_s=0.0, metrics={}, profile_dir=""
        )
        return msgspec.structs.replace(
            job, spec=Spec(command=(), cwd="", **public), user=user, reason=reason, progress_report=report
        )

    def redact_entries(self, entries: Iterable[Entry]) -> Iterable[Entry]:
        """Redact the rows of a listing, lazily."""
        if self.sees_all:
            return entries
        return ((self.redact_job(job), self.redact_blocker(why)) for job, why in entries)

    def redact_blocker(self, why: Blocker | None) -> Blocker | None:
        """The blocker of a waiting job, without ids and users of hidden jobs."""
        if why is None or self.sees_names:
            return why
        user = why.user if why.user == self.user else msgspec.UNSET
        return msgspec.structs.replace(why, detail=self.redact_text(why.detail), user=user)

    def redact_user(self, user: str) -> str:
        """A user name, or a placeholder if it is hidden from the caller."""
        return user if self.sees_names or user == self.user else NAMELESS

    @property
    def only_users(self) -> frozenset[str]:
        """Users whose jobs a listing may contain; empty means all users."""
        return frozenset() if self.sees_names else frozenset({self.user})


def viewer_of(request: Request) -> Viewer:
    """The viewer of this request."""
    settings, uid = context_of(request).settings, request.scope["state"]["uid"]
    return Viewer(
        caller_as_owner(request),
        sees_all=not settings.is_system or uid == 0,
        sees_names=sees_names(request),
        is_operator=is_operator(request),
        job=context_of(request).job,
    )
