"""The parts of a daemon, and how they are connected."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from gflow import __version__
from gflow.core.effects import Effect, Start
from gflow.core.events import Exited, LeasesSeen, RemoteStatus, Seen, Stuck
from gflow.core.ids import label
from gflow.core.model import Gpu, JobState
from gflow.core.reasons import ReasonKind
from gflow.core.state.machine import UNBOUNDED
from gflow.core.state.state import State
from gflow.daemon.api import rlimits
from gflow.daemon.auth.users import look_up_with
from gflow.daemon.execution.cluster_users import target_folder, user_account, user_key_of
from gflow.daemon.execution.device_isolation import OFF, DeviceIsolation
from gflow.daemon.execution.executor import Executor
from gflow.daemon.execution.gpu_sharing import Sharing
from gflow.daemon.execution.mps import Mps
from gflow.daemon.execution.project_files import snapshots_in
from gflow.daemon.execution.remote_logs import fetch_at_end
from gflow.daemon.loop import timers
from gflow.daemon.loop.loop import Loop
from gflow.daemon.loop.stored_state import reload
from gflow.daemon.monitors.gpu_leases import LeaseWatch
from gflow.daemon.monitors.gpu_monitor import (
    ANOTHER_USER,
    GpuWatch,
    names_of,
    overran_of,
    seen_of,
    watch_of,
    watched_of,
)
from gflow.daemon.monitors.idle_gpus import IdleGpuMonitor
from gflow.daemon.monitors.job_progress import ProgressSocket
from gflow.daemon.notify.notifier import MailRules, Notifier
from gflow.daemon.process.cpu_slices import ask_for_short_slices
from gflow.daemon.process.open_files import raise_open_files
from gflow.daemon.settings import Settings, check_typed
from gflow.errors import ReadOnly, StoreError
from gflow.fault_points import point
from gflow.gpu.census import Report
from gflow.privileged.in_process import InProcess
from gflow.privileged.link import Link
from gflow.privileged.port import Privileged
from gflow.privileged.remote import Remote
from gflow.privileged.remote_target import RemoteTarget
from gflow.store.location import first_free_number
from gflow.store.port import LAUNCH_EPOCH
from gflow.store.sqlite import SqliteStore
from gflow.targets.file_rights import OWN_FILES, Owner
from gflow.targets.local.run_record import boot_id
from gflow.targets.local.target import LocalTarget
from gflow.targets.port import Ended, Run
from gflow.targets.routing import RemoteTargets, Targets
from gflow.targets.slurm.target import SlurmTarget

log = logging.getLogger("gflow.daemon")
LoopFactory = Callable[..., Loop]


class Daemon:
    """The parts of a daemon, created in an order that keeps jobs from inheriting descriptors."""

    def __init__(self, settings: Settings, loop_class: LoopFactory, link: Link | None = None) -> None:
        """`link`: to the launcher, in system mode."""
        self.privileged: Privileged
        self.target: LocalTarget | RemoteTarget
        if link is not None:
            self.privileged = Remote(link)
            self.target = RemoteTarget(link, self._ended, self._restart, self._stuck)
        else:
            self.privileged = InProcess(settings.run_dir, settings.socket.parent, is_system=False)
            # The zygote first: jobs cannot inherit descriptors that are opened later.
            self.target = LocalTarget(
                settings.run_dir, self._ended, settings.job_files_dir, self._restart, self._stuck
            )
            self.target.open()
        look_up_with(self.privileged.account)
        _raise_open_files()
        ask_for_short_slices()
        machine = State(cpus=settings.cpus, memory_mib=settings.memory_mib, policy=settings.policy)
        self.store = SqliteStore(settings.database, settings.kind, partial(reload, machine))
        self._epoch = self.target.earlier_epoch = str(self.store.meta_value(LAUNCH_EPOCH) or "")
        settings.logs.mkdir(mode=0o700, exist_ok=True)
        # Before the first use of the boot clock: it continues that of the last daemon.
        kept = self.store.meta_value(timers.CLOCK)
        record = timers.load_offset(None if kept is None else str(kept), boot_id(), self.store.latest_boot())
        state = reload(machine, self.store)
        if state.jobs.next_number == 1:  # a new database beside old logs: their numbers are used
            state.jobs.next_number = first_free_number(settings.data)
        self.loop = loop_class(state, self.store, self._perform, paranoid=settings.paranoid)
        state.machine.most_runs = _most_runs()
        if record != kept:
            self.loop.store_meta({timers.CLOCK: record})
        self.leases = LeaseWatch(
            self._is_ours,
            self._leases_changed,
            self.privileged,
            self._stray_gpus,
            rules=settings.is_system,
        )
        most = settings.config["notifications.max_concurrent_deliveries"]
        mail_rules = MailRules(
            settings.config["notifications.allowed_domains"],
            settings.config["notifications.max_mails_per_hour"] if settings.is_system else 0,
        )
        self.notifier = Notifier(self.loop, self.store, settings.destinations, most, mail_rules)
        # None until the daemon serves.
        self.progress_socket: ProgressSocket | None = None
        # None if the GPUs are simulated.
        self.watch: GpuWatch | None = None
        self._settings = settings
        wanted = settings.gpu.mps and not settings.gpus and not settings.is_system  # one server, one user
        self.mps = (
            Mps(settings.data, self.target.tag) if wanted and isinstance(self.target, LocalTarget) else None
        )
        self.isolation = self._isolate_devices(settings)
        self.clusters = self._clusters(settings)
        self.targets = Targets(self.target, self.clusters)
        self.executor = Executor(
            settings,
            self.store,
            self.targets,
            self.leases,
            lambda: self.loop.state,
            self._ended,
            Sharing(self.mps, looks=not settings.is_system),
            self.isolation,
        )
        # As the last daemon knew them: jobs that it committed to start are started before the first poll.
        self.leases.see(
            Gpu(index=index, uuid=uuid, model="", memory_mib=0)
            for index, uuid in names_of(state.machine.gpu_names).items()
        )

    def _isolate_devices(self, settings: Settings) -> DeviceIsolation | None:
        """Device isolation between users; None: all jobs are of one user, or the GPUs are simulated."""
        if not settings.is_system or settings.gpus:
            return None
        if not settings.gpu.isolate_devices:
            return DeviceIsolation(OFF)
        isolation = DeviceIsolation(self.target.find_isolation_problem())
        if isolation.problem:
            log.warning("jobs can open the GPUs of other jobs: %s", isolation.problem)
        return isolation

    def _clusters(self, settings: Settings) -> RemoteTargets:
        """A target for each cluster; in system mode, for each user. It uses no resources until it gets a job.

        In system mode only clusters over SSH: without it sbatch would run as root.
        """
        if settings.is_system:
            names = [name for name, one in settings.clusters.items() if one.host]
            return RemoteTargets(names, self._make_cluster, user_key_of())
        return RemoteTargets(list(settings.clusters), self._make_cluster)

    def _make_cluster(self, name: str, uid: int) -> SlurmTarget:
        settings = self._settings
        user = user_account(self.privileged, uid) if settings.is_system else None
        files = self.privileged.files_of(Owner(user.uid, user.gid)) if user is not None else OWN_FILES
        return SlurmTarget(
            name,
            settings.clusters[name],
            target_folder(settings, name, user),
            partial(self._on_remote_status, name, uid),
            partial(self._on_remote_end, name, uid),
            partial(self._on_remote_progress, uid),
            snapshots_in(settings.snapshots),
            user,
            files,
        )

    def _on_remote_progress(self, uid: int, lines: list[bytes]) -> None:
        if self.progress_socket is not None:
            self.progress_socket.receive(lines, uid if self._settings.is_system else os.getuid())

    def _on_remote_status(self, name: str, uid: int, changes: list[RemoteStatus]) -> None:
        for one in changes:
            self.targets.of(Run(one.key, one.attempt), name, uid)
        self.loop.post(lambda at: Seen(at=at, statuses=tuple(changes)))

    def _on_remote_end(self, name: str, uid: int, ended: Ended) -> None:
        self.targets.of(ended.run, name, uid)
        job = self.loop.state.jobs.get(ended.run.key)
        if job is None or not fetch_at_end(self._settings, self.targets, job, lambda: self._ended(ended)):
            self._ended(ended)

    async def see_gpus(self) -> None:
        """Report the GPUs to the engine, and start polling them."""
        report = Report(gpus=self._settings.gpus)
        if not self._settings.gpus:
            self.watch = watch_of(
                self._settings,
                self.loop.state,
                self.privileged.process_owners(trust_pids=self._settings.gpu.trust_pids),
                seen=self._gpus_changed,
                overran=lambda one, used: self.loop.post(lambda at: overran_of(one, used, at)),
                watched=lambda: watched_of(self.loop.state),
                looked=IdleGpuMonitor(self._settings.gpu.idle_after_secs, self.loop.post).looked,
            )
            await self.watch.begin()
            report = self.watch.latest
            if self.mps is not None and report.gpus:
                await self.mps.begin()
            if not report.trouble:
                check_typed(self._settings.policy, report.gpus)
        self.leases.see(report.gpus)
        with suppress(ReadOnly):  # the disk may be full already: the loop retries by itself
            self.loop.add_audit_entry(
                "daemon started", f"version {__version__}"
            )  # in one commit with the GPUs
            await self.loop.ask(lambda at: seen_of(report, at, is_private=self._settings.is_private))
        if strays := self.target.strays():
            log.warning("runs that the database does not know: %s", ", ".join(sorted(strays)))
            numbers = [int(name.replace("_", ".").partition(".")[0]) for name in strays]
            self.loop.state.jobs.next_number = max(
                self.loop.state.jobs.next_number, *(one + 1 for one in numbers)
            )
            self.leases.look()

    def recover(self) -> None:
        """Finish or undo the bulk work that the last daemon began."""
        try:
            self.loop.recover()
        except StoreError as error:  # the disk may be full already: the loop retries
            log.error("%s; unfinished bulk work is left for later", error)

    def _gpus_changed(self, report: Report) -> None:
        self.leases.see(report.gpus)
        self.loop.post(lambda at: seen_of(report, at, is_private=self._settings.is_private))

    def keep_epoch(self) -> None:
        """Store the launch epoch for the next daemon, once all runs of earlier epochs are settled.

        Until then the next daemon takes runs of this epoch for runs of an earlier one: it may lose a run, but
        never starts one twice.
        """
        epoch = self.target.epoch
        if epoch != self._epoch and not self.target.uncertain_runs:
            self._epoch = epoch
            self.loop.store_meta({LAUNCH_EPOCH: epoch})

    def _perform(self, effects: list[Effect]) -> None:
        if self.progress_socket is not None:
            for effect in effects:
                if type(effect) is Start and (job := self.loop.state.jobs.get(effect.key)) is not None:
                    self.progress_socket.listen(job.uid)
        self.executor(effects)
        self.keep_epoch()
        # Ends can wait for the next poll; jobs that start on a GPU are watched from the start.
        if self.watch is not None and any(
            type(effect) is Start and self._has_gpu(effect) for effect in effects
        ):
            self.watch.refresh()

    def _has_gpu(self, effect: Start) -> bool:
        job = self.loop.state.jobs.get(effect.key)
        return job is not None and bool(job.gpu_ids)

    def _ended(self, ended: Ended) -> None:
        """Post the end of a run to the engine."""
        point("end.received")
        end, (key, attempt) = ended.end, ended.run
        job = self.loop.state.jobs.get(key)
        if self.progress_socket is not None and job is not None:
            self.progress_socket.drain(job.uid)
        if end.problem.kind is ReasonKind.LEASED:
            # Before the event, so that the next round does not choose the same GPU again.
            self.leases.look(lost=job.gpu_ids if job else ())
        self.loop.post(
            lambda at: Exited(
                at=at,
                key=key,
                attempt=attempt,
                code=end.code,
                signal=end.signal,
                problem=end.problem,
                cpu_ms=end.cpu_ms,
                peak_kib=end.peak_kib,
                ended_ago_s=end.ago_s,
            )
        )

    def _stuck(self, run: Run, detail: str) -> None:
        """Report a run that was killed and does not end. Its GPUs stay allocated; views show the problem."""
        log.warning("job %s cannot be killed: %s", label(run.key), detail)
        self.loop.post(lambda at: Stuck(at=at, key=run.key, attempt=run.attempt, detail=detail))

    def _restart(self, run: Run) -> bool:
        """Start a run again whose shim was killed before the job began, unless the job was cancelled."""
        job = self.loop.state.jobs.get(run.key)
        if job is None or job.state is not JobState.RUNNING or job.attempt != run.attempt or job.stopping:
            return False
        self.executor.start(job)
        return True

    def _stray_gpus(self) -> dict[int, str]:
        """GPUs of runs that the database does not know, as far as their environments tell."""
        gpus = self.loop.state.machine.gpus.values()
        found = {}
        for name, content in self.target.strays().items():
            devices = self.privileged.visible_devices(content.job.pid) if content.job else ()
            for gpu in gpus:
                if gpu.uuid in devices or str(gpu.index) in devices:
                    found[gpu.index] = f"job {name.rpartition('.')[0]}, which the database does not know"
        return found

    def _is_ours(self, gpu: int) -> bool:
        return gpu in self.loop.state.machine.holders

    def _leases_changed(self, foreign: dict[int, str]) -> None:
        if self._settings.is_private:
            foreign = dict.fromkeys(foreign, ANOTHER_USER)
        self.loop.post(lambda at: LeasesSeen(at=at, foreign=foreign))


def adopt(loop: Loop, target: Targets, executor: Executor, cluster_users: Iterable[int]) -> None:
    """Adopt the jobs of an earlier daemon: watch them, report ends, start those that never started.

    `cluster_users`: the users for whom outputs may be left to fetch from clusters.
    """
    running = list(loop.state.running.values())
    for job in running:
        run = Run(job.key, job.attempt)
        point("adopt.before")
        if not target.adopt(run):
            executor.start(job)
        if job.stopping is not None:
            target.stop(run, now=job.stop_now)
    names = {Run(job.key, job.attempt).name for job in running}
    target.forget_others(names)
    for key in sorted(loop.state.remote.jobs):
        job = loop.state.jobs[key]
        run = Run(job.key, job.attempt)
        executor.start(job)  # a submission that Slurm has already is found there
        if job.stopping is not None:
            target.stop(run, now=job.stop_now)
        elif job.remote is not None and (job.remote.hold or job.remote.kept is not None):
            target.withdraw(run)
    for uid in cluster_users:
        for name in target.remote.names:
            cluster = target.remote.of(name, uid)
            assert isinstance(cluster, SlurmTarget)
            cluster.resume()
    loop.arm()


def _raise_open_files() -> None:
    """Raise the limit of open files, after the original one is known."""
    rlimits.own_limits()
    raise_open_files()


def _most_runs() -> int:
    """The most jobs that may run at once: each needs a descriptor, and half of the free ones are for jobs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = soft - len(os.listdir("/proc/self/fd"))
    return UNBOUNDED if soft == resource.RLIM_INFINITY else max(1, free // 2)
