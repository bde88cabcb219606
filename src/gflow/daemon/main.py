"""Start, serve, stop. The order of the first steps is a safety property; see `run`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gflow import __version__
from gflow.config import timezone
from gflow.core.effects import Effect, Start
from gflow.core.events import Exited, LeasesSeen, RemoteStatus, Seen, Stuck
from gflow.core.ids import label
from gflow.core.lifecycle.finish import LEASED
from gflow.core.model import Gpu, JobState
from gflow.core.state.machine import UNBOUNDED
from gflow.core.state.state import State
from gflow.daemon.api import rlimits
from gflow.daemon.api.connections import Connections, bounds_of
from gflow.daemon.api.rate_limits import Fairness
from gflow.daemon.api.routes import make_app
from gflow.daemon.api.server import Server, bind, serve, serve_port
from gflow.daemon.api.tcp_gate import Gate
from gflow.daemon.auth.tokens import Tokens
from gflow.daemon.context import Context
from gflow.daemon.execution.executor import Performer
from gflow.daemon.execution.gpu_sharing import Sharing
from gflow.daemon.execution.mps import Mps
from gflow.daemon.loop import timers
from gflow.daemon.loop.forecasts import Forecasts
from gflow.daemon.loop.loop import Loop, reload
from gflow.daemon.loop.user_threads import Threads, end_pool
from gflow.daemon.monitors.gpu_leases import LeaseWatch
from gflow.daemon.monitors.gpu_monitor import (
    SOMEBODY,
    GpuWatch,
    devices_of,
    names_of,
    overran_of,
    seen_of,
    watch_of,
    watched_of,
)
from gflow.daemon.monitors.idle_gpus import IdleGpuMonitor
from gflow.daemon.monitors.job_progress import ProgressSocket
from gflow.daemon.monitors.maintenance import foresee, keep
from gflow.daemon.monitors.spot_notices import spot_watch_of
from gflow.daemon.notify.notifier import MailRules, Notifier
from gflow.daemon.process import daemon_log, directories, instance_lock
from gflow.daemon.process import reload as succession
from gflow.daemon.process.cpu_slices import ask_for_short_slices
from gflow.daemon.settings import Settings, check_typed
from gflow.errors import GflowError, ReadOnly, StoreError
from gflow.fault_points import point
from gflow.gpu.census import Report
from gflow.store.location import first_free_number, is_about_a_disk, unusable
from gflow.store.port import LAUNCH_EPOCH
from gflow.store.sqlite import SqliteStore
from gflow.targets.local.run_record import boot_id
from gflow.targets.local.target import LocalTarget
from gflow.targets.port import Ended, Run
from gflow.targets.routing import Targets
from gflow.targets.slurm.target import SlurmTarget

log = logging.getLogger("gflow.daemon")
# Threads of the daemon's own besides those of notifications: backups, tokens, MPS, clusters.
SPARE_THREADS = 8
# How long a stop waits for threads, of either pool.
STOP_S = 4.0
LoopFactory = Callable[..., Loop]


def run(settings: Settings, loop_class: LoopFactory = Loop) -> int:
    """The daemon in the foreground, until TERM or INT. Returns its exit code."""
    daemon_log.set_up(settings.logs / "daemon.log")
    os.umask(0o077)
    succession.heed_reloads()
    timezone.use(settings.config["timezone"])
    for note in settings.notes:
        log.warning("%s", note)
    gc.disable()  # until the queue is loaded: it is all there to stay
    try:
        if settings.is_system:
            directories.check_installation()
            directories.prepare(settings)
        known = succession.inherited(succession.LOCK)
        held = instance_lock.take(settings.data) if known is None else known
        listener = asyncio.run(_serve(settings, loop_class))
    except GflowError as error:
        return _say_failed(error)
    except OSError as error:
        if not is_about_a_disk(error):
            raise
        return _say_failed(unusable(_folder_of(error, settings.data), error))
    if listener is not None:
        succession.become_next(listener, held)
    os.close(held)
    return 0


async def _serve(settings: Settings, loop_class: LoopFactory) -> int | None:
    """Serve until a signal says stop; if we are to come again, a descriptor of the listening socket."""
    pool = _start_threads(settings)
    daemon = Daemon(settings, loop_class)
    adopt(
        daemon.loop, daemon.targets, daemon.performer
    )  # before the first round: what that starts needs none
    daemon.keep_epoch()
    await daemon.see_gpus()
    daemon.recover()
    daemon.target.warm_up()
    stopped = asyncio.Event()
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGUSR1):
        asyncio.get_running_loop().add_signal_handler(number, _stop, settings, stopped, number, signals)
    context = Context(
        settings,
        daemon.loop,
        daemon.store,
        daemon.targets,
        daemon.performer,
        timers.now().boot,
        stopped,
        Tokens(settings.tokens),
        daemon.notifier,
        Forecasts(daemon.loop, threads := Threads(is_shared=settings.is_system)),
        daemon.watch,
        daemon.mps,
        Fairness(is_shared=settings.is_system, most_kept=settings.config["people.max_kept_mib"] << 20),
        threads,
        daemon.target.strays,
    )
    listener = succession.inherited_listener() or bind(settings.socket, public=settings.is_system)
    servers = _listen(context, listener)
    daemon.ear = ProgressSocket(settings, lambda: daemon.loop.state, daemon.loop.post)
    spot = spot_watch_of(settings.spot_cloud, settings.config["spot.every_secs"], daemon.loop.post)
    _write_address(settings)
    _spare_the_collector()
    _say_ready()
    errands = [
        asyncio.ensure_future(keep(settings, context.fairness)),
        asyncio.ensure_future(foresee(daemon.loop, context.forecasts)),
        asyncio.ensure_future(context.tokens.watch()),
    ]
    daemon.notifier.begin()
    await stopped.wait()
    for errand in errands:
        errand.cancel()
    _attempt("progress", daemon.ear.close)
    if spot is not None:
        _attempt("spot", spot.close)
    _attempt("notifications", daemon.notifier.end)
    if daemon.watch is not None:
        _attempt("GPU watch", daemon.watch.close)
    if daemon.mps is not None and not daemon.loop.state.machine.holders:
        await _attempt_to_end(daemon.mps)
    kept = os.dup(listener.fileno()) if set(signals) == {signal.SIGUSR1} else None
    for server, connections in servers:
        server.close()
        for connection in list(connections):  # without an answer: clients ask the next daemon again
            connection.transport.abort()
    _end_threads(context, pool)
    if not {signal.SIGUSR1, signal.SIGUSR2} & set(signals):
        _attempt("leases", daemon.leases.close)
    _attempt("targets", daemon.targets.close)
    _attempt("shims", daemon.target.close)
    _attempt("database", daemon.store.close)
    return kept


def _start_threads(settings: Settings) -> ThreadPoolExecutor:
    """Make the default pool wide enough for all deliveries at once and some threads more."""
    most = settings.config["notifications.max_concurrent_deliveries"]
    pool = ThreadPoolExecutor(most + SPARE_THREADS, "gflow")
    asyncio.get_running_loop().set_default_executor(pool)
    return pool


def _end_threads(context: Context, pool: ThreadPoolExecutor) -> None:
    """End the thread pools with a time limit; asyncio would wait for its own without one."""
    _attempt("worker threads", partial(context.threads.close, STOP_S))
    _attempt("default threads", partial(end_pool, pool, STOP_S))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


async def _attempt_to_end(mps: Mps) -> None:
    try:
        await mps.end()
    except Exception as error:
        log.warning("while stopping, MPS: %s", error)


def _listen(context: Context, listener: socket.socket) -> list[tuple[Server, set[Any]]]:
    """Serve on the socket, and on a port if one is configured."""
    settings, app = context.settings, make_app(context)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = Connections(bounds_of(descriptors, settings.most_connections))
    later = asyncio.get_running_loop().call_later
    logging.getLogger("uvicorn.error").addFilter(daemon_log.PerMinute(later))
    served = serve(listener, app, connections)
    if not settings.listening.port:
        return [served]
    gate = Gate(app, context.tokens, settings.listening.hosts, is_system=settings.is_system)
    return [*serve_port(settings.listening, gate, connections, served[0]), served]


class Daemon:
    """The parts of a daemon, put together in the order that keeps jobs from inheriting any of it."""

    def __init__(self, settings: Settings, loop_class: LoopFactory) -> None:
        # The zygote first: nothing that is opened later can reach a job.
        self.target = LocalTarget(
            settings.run_dir, self._ended, settings.shown_dir, self._begin_again, self._stuck
        )
        self.target.open()
        _raise_open_files()
        ask_for_short_slices()
        machine = State(cpus=settings.cpus, memory_mib=settings.memory_mib, policy=settings.policy)
        self.store = SqliteStore(settings.database, settings.kind, partial(reload, machine))
        self._epoch = self.target.earlier_epoch = str(self.store.kept(LAUNCH_EPOCH) or "")
        settings.logs.mkdir(mode=0o700, exist_ok=True)
        # Before anything is read by it: the boot clock goes on from where the last daemon's was.
        kept = self.store.kept(timers.CLOCK)
        record = timers.settle(None if kept is None else str(kept), boot_id(), self.store.latest_boot())
        state = reload(machine, self.store)
        if state.next_number == 1:  # a new database beside old logs: those numbers were given out
            state.next_number = first_free_number(settings.data)
        self.loop = loop_class(state, self.store, self._perform, paranoid=settings.paranoid)
        state.machine.most_runs = _most_runs()
        if record != kept:
            self.loop.keep({timers.CLOCK: record})
        self.leases = LeaseWatch(
            self._is_ours, self._leases_changed, self._stray_gpus, rules=settings.is_system
        )
        most = settings.config["notifications.max_concurrent_deliveries"]
        mail_rules = MailRules(
            settings.config["notifications.allowed_domains"],
            settings.config["notifications.max_mails_per_hour"] if settings.is_system else 0,
        )
        self.notifier = Notifier(self.loop, self.store, settings.destinations, most, mail_rules)
        # None: not yet.
        self.ear: ProgressSocket | None = None
        # None: the GPUs are simulated.
        self.watch: GpuWatch | None = None
        self._settings = settings
        wanted = settings.gpu.mps and not settings.gpus and not settings.is_system  # one server, one user
        self.mps = Mps(settings.data, self.target.tag) if wanted else None
        self.targets = Targets(self.target, self._clusters(settings))
        self.performer = Performer(
            settings,
            self.store,
            self.targets,
            self.leases,
            lambda: self.loop.state,
            self._ended,
            Sharing(self.mps, looks=not settings.is_system),
        )
        # As the last daemon knew them: what it promised to start is started before the first look.
        self.leases.see(
            Gpu(index=index, uuid=uuid, model="", memory_mib=0)
            for index, uuid in names_of(state.machine.gpu_names).items()
        )

    def _clusters(self, settings: Settings) -> dict[str, SlurmTarget]:
        """A target for each cluster; each costs nothing until it gets a job."""
        if settings.is_system:  # whoever had a job for one would run sbatch as root
            return {}
        folder = settings.slurm_dir
        return {
            name: SlurmTarget(name, one, folder / name, partial(self._seen, name), partial(self._over, name))
            for name, one in settings.clusters.items()
        }

    def _seen(self, name: str, news: list[RemoteStatus]) -> None:
        for one in news:
            self.targets.of(Run(one.key, one.attempt), name)
        self.loop.post(lambda at: Seen(at=at, sightings=tuple(news)))

    def _over(self, name: str, ended: Ended) -> None:
        self.targets.of(ended.run, name)
        self._ended(ended)

    async def see_gpus(self) -> None:
        """Let the engine know what GPUs there are, and go on looking."""
        report = Report(gpus=self._settings.gpus)
        if not self._settings.gpus:
            self.watch = watch_of(
                self._settings,
                self.loop.state,
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
        with suppress(ReadOnly):  # the disk may be full already: the loop heals by itself
            self.loop.note("daemon started", f"version {__version__}")  # in one commit with what is seen
            await self.loop.ask(lambda at: seen_of(report, at, is_private=self._settings.is_private))
        if strays := self.target.strays():
            log.warning("these runs go on and the database does not know them: %s", ", ".join(sorted(strays)))
            numbers = [int(name.replace("_", ".").partition(".")[0]) for name in strays]
            self.loop.state.next_number = max(self.loop.state.next_number, *(one + 1 for one in numbers))
            self.leases.look()

    def recover(self) -> None:
        """Finish, or undo, what the last daemon had begun in parts."""
        try:
            self.loop.recover()
        except StoreError as error:  # the disk may be full already: the loop tries again
            log.error("%s; what was begun in parts is left for later", error)

    def _gpus_changed(self, report: Report) -> None:
        self.leases.see(report.gpus)
        self.loop.post(lambda at: seen_of(report, at, is_private=self._settings.is_private))

    def keep_epoch(self) -> None:
        """Let the next daemon know in which epoch we launch, once all runs of earlier ones are settled.

        Until then it takes what we launch for runs of an earlier epoch: it may lose one, and repeats none.
        """
        epoch = self.target.epoch
        if epoch != self._epoch and not self.target.unsettled:
            self._epoch = epoch
            self.loop.keep({LAUNCH_EPOCH: epoch})

    def _perform(self, effects: list[Effect]) -> None:
        if self.ear is not None:
            for effect in effects:
                if type(effect) is Start and (job := self.loop.state.jobs.get(effect.key)) is not None:
                    self.ear.listen(job.uid)
        self.performer(effects)
        self.keep_epoch()
        # Ends can wait for the next look; who starts on a GPU is watched from the first moment.
        if self.watch is not None and any(
            type(effect) is Start and self._has_gpu(effect) for effect in effects
        ):
            self.watch.refresh()

    def _has_gpu(self, effect: Start) -> bool:
        job = self.loop.state.jobs.get(effect.key)
        return job is not None and bool(job.gpu_ids)

    def _ended(self, ended: Ended) -> None:
        """A run is over: an event for the engine."""
        end, (key, attempt) = ended.end, ended.run
        job = self.loop.state.jobs.get(key)
        if self.ear is not None and job is not None:
            self.ear.hear_out(job.uid)
        if end.problem == LEASED:
            # First, so that the next round does not choose the same GPU again.
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
            )
        )

    def _stuck(self, run: Run, detail: str) -> None:
        """A run was killed and does not end: its GPUs stay taken, and everybody who looks is told."""
        log.warning("job %s cannot be killed: %s", label(run.key), detail)
        self.loop.post(lambda at: Stuck(at=at, key=run.key, attempt=run.attempt, detail=detail))

    def _begin_again(self, run: Run) -> bool:
        """Its shim was killed before it began: another one takes it, unless somebody cancelled it."""
        job = self.loop.state.jobs.get(run.key)
        if job is None or job.state is not JobState.RUNNING or job.attempt != run.attempt or job.stopping:
            return False
        self.performer.start(job)
        return True

    def _stray_gpus(self) -> dict[int, str]:
        """GPUs that runs have which the database does not know, as far as their environments tell."""
        gpus = self.loop.state.machine.gpus.values()
        found = {}
        for name, content in self.target.strays().items():
            told = devices_of(content.job.pid) if content.job else ()
            for gpu in gpus:
                if gpu.uuid in told or str(gpu.index) in told:
                    found[gpu.index] = f"job {name.rpartition('.')[0]}, which the database does not know"
        return found

    def _is_ours(self, gpu: int) -> bool:
        return gpu in self.loop.state.machine.holders

    def _leases_changed(self, foreign: dict[int, str]) -> None:
        if self._settings.is_private:
            foreign = dict.fromkeys(foreign, SOMEBODY)
        self.loop.post(lambda at: LeasesSeen(at=at, foreign=foreign))


def _stop(settings: Settings, stopped: asyncio.Event, number: int, signals: list[int]) -> None:
    """USR2: another daemon comes at once, so address and socket stay, and clients wait. USR1: that is us."""
    signals.append(number)
    stopped.set()
    if number not in (signal.SIGUSR2, signal.SIGUSR1):
        _attempt("address", partial((settings.data / "address").unlink, missing_ok=True))
        _attempt("socket", partial(settings.socket.unlink, missing_ok=True))


def _attempt(what: str, step: Callable[[], object]) -> None:
    """One step of the clean-up: on a disk that fails it must not keep the others, or the end, from coming."""
    try:
        step()
    except Exception as error:
        log.warning("while stopping, %s: %s", what, error)


def adopt(loop: Loop, target: Targets, performer: Performer) -> None:
    """Take over the jobs of an earlier daemon: watch, settle, or start what never started."""
    running = list(loop.state.running.values())
    for job in running:
        run = Run(job.key, job.attempt)
        point("adopt.before")
        if not target.adopt(run):
            performer.start(job)
        if job.stopping is not None:
            target.stop(run, now=job.stop_now)
    names = {Run(job.key, job.attempt).name for job in running}
    target.forget_others(names)
    for key in sorted(loop.state.abroad):
        job = loop.state.jobs[key]
        run = Run(job.key, job.attempt)
        performer.start(job)  # what was submitted already is found there
        if job.stopping is not None:
            target.stop(run, now=job.stop_now)
        elif job.abroad is not None and (job.abroad.hold or job.abroad.kept is not None):
            target.recall(run)
    loop.arm()


def _raise_open_files() -> None:
    """A descriptor per running job: take as many as we may. Jobs keep the limit they were born with."""
    rlimits.own_limits()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _most_runs() -> int:
    """How many jobs may run at once: each takes a descriptor, and half of the free ones are theirs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = soft - len(os.listdir("/proc/self/fd"))
    return UNBOUNDED if soft == resource.RLIM_INFINITY else max(1, free // 2)


def _write_address(settings: Settings) -> None:
    """Tell clients where we listen: their XDG_RUNTIME_DIR may differ from ours."""
    path = settings.data / "address"
    temporary = path.with_suffix(".new")
    temporary.write_text(str(settings.socket))
    temporary.rename(path)


def _spare_the_collector() -> None:
    """What is loaded now stays, and a job is no cycle: look for garbage rarely.

    By default ten thousand new jobs would have the whole queue searched several times.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def _say_ready() -> None:
    """Tell `gflowd up` that we serve."""
    _tell_starter("ready\n")


def _say_failed(error: GflowError) -> int:
    """Tell `gflowd up`, and whoever reads our log, why we do not serve; the exit code.

    Not through the log alone: it may be on the disk that is full.
    """
    message, hint = (text.encode()[:1500].decode(errors="ignore") for text in (error.message, error.hint))
    _tell_starter(f"{error.exit_code}\n{message}\n{hint}\n")
    with suppress(OSError):
        sys.stderr.write(f"gflowd: {error.message}\n" + (f"{error.hint}\n" if error.hint else ""))
        sys.stderr.flush()
    return error.exit_code


def _tell_starter(text: str) -> None:
    """Write to the descriptor that `gflowd up` left us, at once (PIPE_BUF); it may have lost patience."""
    fd = os.environ.pop("GFLOW_READY_FD", "")
    if fd:
        with suppress(BrokenPipeError):
            os.write(int(fd), text.encode())
        os.close(int(fd))


def _folder_of(error: OSError, data: Path) -> Path:
    """The folder that an error is about."""
    return Path(os.fsdecode(error.filename)).parent if isinstance(error.filename, str | bytes) else data
