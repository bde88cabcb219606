"""The parts of the daemon that route handlers use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import msgspec
from starlette.requests import Request

from gflow.core.forecast.explain import Blocker, explain
from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.model import Job
from gflow.daemon.auth.rate_limits import RateLimits
from gflow.daemon.auth.tokens import Tokens
from gflow.daemon.execution.device_isolation import DeviceIsolation
from gflow.daemon.execution.executor import Executor
from gflow.daemon.execution.mps import Mps
from gflow.daemon.loop import timers
from gflow.daemon.loop.forecasts import Forecasts
from gflow.daemon.loop.loop import Loop
from gflow.daemon.loop.user_threads import Threads
from gflow.daemon.monitors.gpu_monitor import GpuWatch
from gflow.daemon.notify.notifier import Notifier
from gflow.daemon.process.web_listener import WebListener
from gflow.daemon.settings import Settings
from gflow.privileged.port import Privileged
from gflow.store.sqlite import SqliteStore
from gflow.targets.local.run_record import Content
from gflow.targets.routing import Targets
from gflow.text.queue import Entry

# Replaces names of other users and their jobs where privacy hides them.
NAMELESS = "private"


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


class Viewer(Protocol):
    """The user who views jobs: what they may see of each."""

    # Whether names of other users are shown.
    sees_names: bool

    def redact_job(self, job: Job) -> Job: ...

    def sees_job(self, job: Job) -> bool: ...

    def redact_text(self, text: str) -> str: ...

    def redact_user(self, user: str) -> str: ...

    def redact_blocker(self, why: Blocker | None) -> Blocker | None: ...


class Context(NamedTuple):
    """References to the parts of the daemon."""

    settings: Settings
    loop: Loop
    store: SqliteStore
    target: Targets
    executor: Executor
    started_boot: float
    stopped: asyncio.Event
    tokens: Tokens
    notifier: Notifier
    forecasts: Forecasts
    web: WebListener
    privileged: Privileged
    watch: GpuWatch | None = None
    mps: Mps | None = None
    isolation: DeviceIsolation | None = None
    rate_limits: RateLimits = RateLimits()
    threads: Threads = Threads()
    # Live runs that the database does not know, by name.
    strays: Callable[[], dict[str, Content]] = dict

    @property
    def pid(self) -> int:
        """The process that signals go to: in system mode the launcher, which is our parent."""
        return os.getppid() if self.settings.is_system else os.getpid()

    def job(self, key: JobKey) -> Job | None:
        """A job, active or final. The state is never ahead of the database when a handler runs."""
        return self.loop.state.jobs.get(key) or self.store.job(key) or self._waiting_task(key)

    def has_record(self, key: JobKey) -> bool:
        """Whether the key has a job record; a task that waits in its array has none."""
        return key in self.loop.state.jobs or self.store.job(key) is not None

    def queued_as(self, job: Job) -> Job:
        """The job that the queue has for this one: the array, for a task that waits in it."""
        if job.task is None or self.has_record(job.key):
            return job
        return self.job(job_key(job.number)) or job

    def entries(self, jobs: Iterable[Job | None], viewer: Viewer) -> list[Entry]:
        """The jobs as the viewer may see them, each with the reason why it waits."""
        state, at = self.loop.state, timers.now()
        return [
            (viewer.redact_job(job), viewer.redact_blocker(explain(state, job, at)))
            for job in jobs
            if job is not None
        ]

    def _waiting_task(self, key: JobKey) -> Job | None:
        """A job made from the array's record, for a task that has not started."""
        task = task_of(key)
        array = self.job(job_key(number_of(key))) if task is not None else None
        if array is None or array.progress is None or task is None or task not in array.progress.pending:
            return None
        return msgspec.structs.replace(array, key=key, progress=None, exit_code=None, started_at=None)
