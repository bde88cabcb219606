"""Carries out the effects of the engine, after they are durable."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from gflow.core.effects import Effect, Forget, Start, Stop, Warn, Withdraw
from gflow.core.model import LOCAL, Job
from gflow.core.reasons import Reason, ReasonKind
from gflow.core.state.state import State
from gflow.daemon.auth.users import why_unusable
from gflow.daemon.execution.cluster_launch import remote_launch
from gflow.daemon.execution.device_isolation import DeviceIsolation
from gflow.daemon.execution.environment import (
    activation_variables,
    block,
    job_variables,
    path_additions,
    stand_in_variables,
)
from gflow.daemon.execution.gpu_sharing import Sharing
from gflow.daemon.execution.local_container import in_container
from gflow.daemon.execution.log_paths import error_path, log_path
from gflow.daemon.execution.resume_command import with_resume_args
from gflow.daemon.loop import timers
from gflow.daemon.monitors.gpu_leases import LeaseWatch
from gflow.daemon.monitors.gpu_monitor import names_of, parents_of, visible_devices
from gflow.daemon.monitors.job_progress import socket_path
from gflow.daemon.settings import Settings
from gflow.diagnosis.doctor.job_facts import relevant
from gflow.errors import Refused, StoreError
from gflow.fault_points import point
from gflow.privileged.accounts import why_below
from gflow.store.port import Store
from gflow.targets.outcome import SHORTAGES
from gflow.targets.port import End, Ended, Launch, Run
from gflow.targets.routing import Targets
from gflow.text.end_line import spell_end

log = logging.getLogger("gflow.perform")


class Executor:
    """Turns effects into calls of the targets."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        target: Targets,
        leases: LeaseWatch,
        state: Callable[[], State],
        on_end: Callable[[Ended], None],
        sharing: Sharing | None = None,
        isolation: DeviceIsolation | None = None,
    ) -> None:
        self._sharing = sharing or Sharing()
        self._isolation = isolation
        self._inspections: set[asyncio.Task[None]] = set()
        self._on_end = on_end
        self._leases = leases
        self._settings = settings
        self._target = target
        self._state = state
        self._blob = lru_cache(maxsize=64)(store.blob)
        self._progress_path = lru_cache(maxsize=64)(partial(socket_path, settings))
        self._store = store

        # All other effects concern only the commit or the answer.
        self._handlers: dict[type[Effect], Callable[[Any], None]] = {
            Start: self._start,
            Stop: self._stop,
            Warn: self._warn,
            Withdraw: self._withdraw,
        }

    def __call__(self, effects: list[Effect]) -> None:
        """Carry out the effects: starts, stops and signals first, clean-up last."""
        for effect in effects:
            handler = self._handlers.get(type(effect))
            if handler is not None:
                self._try(handler, effect)
        for effect in effects:
            if type(effect) is Forget:
                self._try(self._forget, effect)

    def _try(self, handler: Callable[[Any], None], effect: Effect) -> None:
        """Carry out one effect. A failure must not prevent the others: all are committed already."""
        try:
            handler(effect)
        except Exception:
            log.exception("%s failed", effect)

    def _start(self, effect: Start) -> None:
        self.start(self._state().jobs[effect.key], is_new=True)

    def start(self, job: Job, *, is_new: bool = False) -> None:
        """Start the job on its target. If its launch cannot be prepared, the attempt ends as failed.

        `is_new`: certainly no earlier daemon has started it.
        """
        point("start.before-order")
        # A job that is on a cluster already goes on, like one that runs here.
        if self._settings.is_system and (is_new or job.target == LOCAL) and (why := self._why_barred(job)):
            self._failed(job, Refused(why))
            return
        try:
            if job.spec.shared and not self._sharing.knows(job, self._environ(job)):
                self._start_later(job)
                return
            launch = self._launch(job)
        except Exception as error:
            if not isinstance(error, (StoreError, OSError, MemoryError)):
                log.exception("job %s cannot be started", job.label)
            self._failed(job, error)
            return
        try:
            self._target.start(launch._replace(is_new=True) if is_new and job.target != LOCAL else launch)
        except (OSError, MemoryError) as error:
            self._failed(job, error)
        point("start.after-order")

    def _why_barred(self, job: Job) -> str:
        """Why jobs of this account may not start now; empty: they may."""
        if job.uid == 0:  # submitted to a version that was one process of root
            return "no job runs as root"
        least = self._settings.config["people.min_uid"]
        return why_unusable(job.uid, job.user) or why_below(job.uid, least)

    def exec_command(self, job: Job, command: tuple[str, ...], term: str, *, is_tty: bool) -> str:
        """Run a command in the environment of a running job (exec); returns the path of its socket."""
        launch = self._launch(job)
        terminal = block({"TERM": term}) if term else b""
        return self._target.exec_command(
            launch._replace(extra=launch.extra + terminal), command, is_tty=is_tty
        )

    def _failed(self, job: Job, error: Exception) -> None:
        """Report an attempt that did not start: as deferred if the daemon lacks resources, else as failed."""
        why = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SHORTAGES):
            kind = ReasonKind.DEFERRED
        else:
            kind = ReasonKind.START_FAILED
        self._on_end(Ended(Run(job.key, job.attempt), End(problem=Reason(kind, why))))

    def _start_later(self, job: Job) -> None:
        """Inspect the job's Python first, then start the job unless it was cancelled meanwhile."""

        async def inspect() -> None:
            try:
                await self._sharing.inspect(job, self._environ(job))
            except Exception as error:  # this task is not awaited: without a report the job would hang
                log.exception("job %s cannot be started", job.label)
                self._failed(job, error)
                return
            run, now = Run(job.key, job.attempt), self._state().jobs.get(job.key)
            if now is None or now.attempt != run.attempt:
                return
            if now.stopping is None:
                self.start(now)
            else:
                self._on_end(Ended(run, End(None, signal.SIGTERM)))

        task = asyncio.ensure_future(inspect())
        self._inspections.add(task)
        task.add_done_callback(self._inspections.discard)

    def submitted_variables(self, job: Job) -> dict[str, str] | None:
        """The variables of the submitted environment that a diagnosis needs; None: it is not kept."""
        try:
            return relevant(self._environ(job))
        except StoreError:
            return None

    def _environ(self, job: Job) -> bytes:
        """The submitted environment with the job's Python environments activated."""
        environ = self._blob(job.spec.environ) if job.spec.environ else b""
        added = activation_variables(job.spec, environ)
        return environ + b"\0" + added if added else environ

    def _stop(self, effect: Stop) -> None:
        job = self._state().jobs.get(effect.key)
        why = "" if job is None or job.target != LOCAL else spell_end(job, timers.now().boot)
        self._target.stop(self._run_of(effect), now=effect.now, grace_s=effect.grace_s, why=why)

    def _run_of(self, effect: Stop | Warn) -> Run:
        """The run that an effect is about, assigned to its target: that of a task may not be yet."""
        run, job = Run(effect.key, effect.attempt), self._state().jobs.get(effect.key)
        if job is not None and job.target != LOCAL:
            self._target.of(run, job.target, job.uid)
        return run

    def _withdraw(self, effect: Withdraw) -> None:
        self._target.withdraw(Run(effect.key, effect.attempt))

    def _warn(self, effect: Warn) -> None:
        self._target.signal(self._run_of(effect), effect.signal)

    def _forget(self, effect: Forget) -> None:
        point("forget.before")
        self._target.forget(Run(effect.key, effect.attempt))
        point("forget.after")

    def _launch(self, job: Job) -> Launch:
        """The launch of the job's current attempt."""
        spec, owner = job.spec, self._state().policy.owner
        if (
            owner is not None and job.uid != owner
        ):  # it would run with the rights of the daemon's user (law 7)
            raise StoreError(f"it belongs to uid {job.uid}, and this daemon runs only jobs of uid {owner}")
        environ = self._blob(spec.environ) if spec.environ else b""
        script = self._blob(spec.script) if spec.script else None
        if job.target != LOCAL:
            # A withdrawn attempt never began. Its number is used up; the job counts those that began.
            attempt = 1 + (self._store.earlier_attempts(job.key) if job.attempt > 1 else 0)
            return remote_launch(self._settings, job, script, environ, attempt)
        cards = self._cards(job.gpu_ids)
        rules = self._isolation.rules(cards) if self._isolation is not None else ""
        variables = job_variables(job, script, self._devices(job.gpu_ids, is_isolated=bool(rules)))
        variables["GFLOW_PROGRESS"] = self._progress_path(job.uid)
        additions = path_additions(spec, script)
        if any(additions):
            variables |= stand_in_variables(script)
        activation = activation_variables(spec, environ, additions)
        contained, wrapper = in_container(self._settings, job)
        log = log_path(self._settings, job)
        return Launch(
            job=with_resume_args(contained),
            script=script,
            wrapper=wrapper,
            environ=environ,
            extra=block(variables) + activation + self._limit_variables(job),
            log=log,
            error_log=error_path(self._settings, job) if spec.error else log,
            # In system mode the log belongs to the user, and the daemon does not truncate it.
            log_cap=0 if self._settings.is_system else self._settings.log_cap_mib << 20,
            leases=tuple(self._leases.paths(job.gpu_ids)),
            uid=job.uid if self._settings.is_system else None,
            max_processes=self._settings.max_processes,
            unkillable_s=self._settings.unkillable_s,
            rules=self._settings.rules,
            devices=rules,
            cards=cards,
        )

    def _cards(self, indices: tuple[int, ...]) -> tuple[str, ...]:
        """The UUIDs of the cards of these GPUs: for a MIG slice, of the card that it is on."""
        stored = self._state().machine.gpu_names
        names, parents = names_of(stored), parents_of(stored)
        return tuple(parents.get(names[index], names[index]) for index in indices if index in names)

    def _devices(self, indices: tuple[int, ...], *, is_isolated: bool) -> str:
        state = self._state()
        gpus = [state.machine.gpus[index] for index in indices if index in state.machine.gpus]
        if len(gpus) == len(indices):
            return visible_devices(gpus, self._settings.gpu.visible_by, is_isolated=is_isolated)
        # An earlier daemon allocated them, and this one has not examined the GPUs yet.
        names = names_of(state.machine.gpu_names)
        return ",".join(names.get(index, str(index)) for index in indices)

    def _limit_variables(self, job: Job) -> bytes:
        """Variables that limit the GPU memory of a job that shares its GPUs."""
        if not job.spec.shared:
            return b""
        known = self._state().machine.gpus
        gpus = [known[index] for index in job.gpu_ids if index in known]
        return block(self._sharing.environment(job, gpus, self._environ(job)))
