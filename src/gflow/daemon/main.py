"""Starts, serves and stops the daemon. The order of the first steps is a safety property; see `run`."""

from __future__ import annotations

import asyncio
import gc
import itertools
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

from gflow.config import timezone
from gflow.daemon.api.connections import Connections, bounds_of
from gflow.daemon.api.routes import make_app
from gflow.daemon.api.server import Server, bind, serve, serve_port
from gflow.daemon.api.tcp_gate import Gate
from gflow.daemon.api.web_page import WebPage
from gflow.daemon.auth.rate_limits import RateLimits
from gflow.daemon.auth.tokens import Tokens
from gflow.daemon.auth.web_sessions import WebSessions
from gflow.daemon.components import Daemon, LoopFactory, adopt
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_users import known_users, stored_snapshots
from gflow.daemon.execution.mps import Mps
from gflow.daemon.loop import timers
from gflow.daemon.loop.forecasts import Forecasts
from gflow.daemon.loop.loop import Loop
from gflow.daemon.loop.user_threads import Threads, end_pool
from gflow.daemon.monitors.job_progress import ProgressSocket
from gflow.daemon.monitors.maintenance import record_eta_samples, run_maintenance
from gflow.daemon.monitors.progress_history import ProgressHistory
from gflow.daemon.monitors.snapshot_pruning import prune_snapshots
from gflow.daemon.monitors.spot_notices import SpotWatch, spot_watch_of
from gflow.daemon.process import daemon_log, instance_lock
from gflow.daemon.process import reload as succession
from gflow.daemon.process.tcp_settings import LOOPBACK, ListenSettings
from gflow.daemon.process.web_listener import WebListener
from gflow.daemon.settings import Settings
from gflow.errors import GflowError
from gflow.privileged import messages
from gflow.privileged.link import Link
from gflow.store import files
from gflow.store.location import is_about_a_disk, unusable_error

log = logging.getLogger("gflow.daemon")
# Threads of the default pool besides those of notifications: backups, tokens, MPS, clusters.
SPARE_THREADS = 8
# Interval between collections of older objects, and the number of active jobs up to which they are short.
# With more jobs, one in so many is made: one in a day.
COLLECT_S, FEW_JOBS, SELDOM = 600.0, 10_000, 144
# A threshold that no count reaches.
NEVER = 1 << 30
# Seconds that a stop waits for the threads of each pool.
STOP_S = 4.0


def run(settings: Settings, loop_class: LoopFactory = Loop, link: Link | None = None) -> int:
    """Run the daemon in the foreground until SIGTERM or SIGINT. Returns the exit code.

    `link`: to the launcher, in system mode; this process is then its scheduler.
    """
    daemon_log.set_up(settings.logs / "daemon.log")
    os.umask(0o077)
    succession.ignore_reload_signal()
    timezone.use(settings.config["timezone"])
    for note in settings.notes:
        log.warning("%s", note)
    gc.disable()  # until the queue is loaded: all of it stays in memory
    try:
        lock = _lock(settings) if link is None else None
        listener = asyncio.run(_serve(settings, loop_class, link))
    except GflowError as error:
        return report_failure(error)
    except OSError as error:
        if not is_about_a_disk(error):
            raise
        return report_failure(unusable_error(_folder_of(error, settings.data), error))
    if lock is not None:
        if listener is not None:
            succession.become_next(listener, lock)
        os.close(lock)
    return 0


def _lock(settings: Settings) -> int:
    inherited = succession.inherited_fd(succession.LOCK)
    return instance_lock.take(settings.data) if inherited is None else inherited


async def _serve(settings: Settings, loop_class: LoopFactory, link: Link | None) -> int | None:
    """Serve until a signal stops the daemon. For a reload, returns a descriptor of the listening socket."""
    pool = _start_threads(settings)
    daemon = Daemon(settings, loop_class, link)
    # Before the first scheduling round: jobs that it starts need no adoption.
    users = known_users(settings) if settings.is_system else [os.getuid()]
    adopt(daemon.loop, daemon.targets, daemon.executor, users)
    daemon.keep_epoch()
    await daemon.see_gpus()
    daemon.recover()
    daemon.target.warm_up()
    stopped = asyncio.Event()
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGUSR1):
        asyncio.get_running_loop().add_signal_handler(number, _stop, settings, stopped, number, signals)
    context = _context_of(daemon, settings, stopped)
    listener = _listener(settings, link)
    servers = _listen(context, listener)
    days = settings.config["retention.samples_days"]
    history = ProgressHistory(settings.progress_points, days, lambda key: daemon.loop.state.jobs.get(key))
    daemon.progress_socket = ProgressSocket(
        settings, lambda: daemon.loop.state, daemon.loop.post, daemon.privileged, history.note
    )
    spot = spot_watch_of(settings.spot_cloud, settings.config["spot.every_secs"], daemon.loop.post)
    _write_address(settings)
    _tune_garbage_collector()
    _report_ready()
    background = [
        asyncio.ensure_future(run_maintenance(settings, context.rate_limits)),
        asyncio.ensure_future(prune_snapshots(settings, lambda: stored_snapshots(settings, daemon.targets))),
        asyncio.ensure_future(record_eta_samples(daemon.loop, context.forecasts)),
        asyncio.ensure_future(context.tokens.watch()),
        asyncio.ensure_future(history.run()),
        asyncio.ensure_future(_collect_garbage(daemon.loop)),
    ]
    daemon.notifier.begin()
    await stopped.wait()
    for task in background:
        task.cancel()
    _attempt("progress over time", history.flush)
    await _end_monitors(daemon, spot)
    kept = os.dup(listener.fileno()) if set(signals) == {signal.SIGUSR1} else None
    _close_servers(servers)
    _end_threads(context, pool)
    if not {signal.SIGUSR1, signal.SIGUSR2} & set(signals):
        _attempt("leases", daemon.leases.close)
        _attempt("web sessions", context.web.stop)
    _attempt("targets", daemon.targets.close)
    _attempt("shims", daemon.target.close)
    _attempt("database", daemon.store.close)
    return kept


def _listener(settings: Settings, link: Link | None) -> socket.socket:
    """The listening socket: that of the last daemon, or a new one. In system mode the launcher has it."""
    if link is not None:
        (fd,) = link.call_for_files(messages.Listen())
        return socket.socket(fileno=fd)
    return succession.inherited_listener() or bind(settings.socket)


def _context_of(daemon: Daemon, settings: Settings, stopped: asyncio.Event) -> Context:
    threads = Threads(is_shared=settings.is_system)
    return Context(
        settings,
        daemon.loop,
        daemon.store,
        daemon.targets,
        daemon.executor,
        timers.now().boot,
        stopped,
        Tokens(settings.tokens),
        daemon.notifier,
        Forecasts(daemon.loop, threads),
        WebListener(settings.listening, WebSessions(settings.web_sessions), is_system=settings.is_system),
        daemon.privileged,
        daemon.watch,
        daemon.mps,
        daemon.isolation,
        RateLimits(is_shared=settings.is_system, most_stored=settings.config["people.max_kept_mib"] << 20),
        threads,
        daemon.target.strays,
    )


async def _end_monitors(daemon: Daemon, spot: SpotWatch | None) -> None:
    """End what observes jobs and GPUs, and the notifications."""
    if daemon.progress_socket is not None:
        _attempt("progress", daemon.progress_socket.close)
    if spot is not None:
        _attempt("spot", spot.close)
    _attempt("notifications", daemon.notifier.end)
    if daemon.watch is not None:
        _attempt("GPU watch", daemon.watch.close)
    if daemon.mps is not None and not daemon.loop.state.machine.holders:
        await _attempt_to_end(daemon.mps)


def _close_servers(servers: list[tuple[Server, set[Any]]]) -> None:
    """Close all connections without an answer: clients retry with the next daemon."""
    for server, connections in servers:
        server.close()
        for connection in list(connections):
            connection.transport.abort()


def _start_threads(settings: Settings) -> ThreadPoolExecutor:
    """Set the default pool: a thread for each concurrent delivery, and SPARE_THREADS."""
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
    """Serve on the socket, on a port if one is configured, and where the web page was before a restart."""
    settings, app = context.settings, make_app(context)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = Connections(bounds_of(descriptors, settings.most_connections))
    later = asyncio.get_running_loop().call_later
    logging.getLogger("uvicorn.error").addFilter(daemon_log.PerMinute(later))
    served = serve(listener, app, connections)
    servers = [served]

    def listen(at: ListenSettings) -> None:
        hosts = at.hosts if at is settings.listening else frozenset(LOOPBACK)
        sessions = context.web.sessions
        gate = Gate(app, context.tokens, sessions, hosts, is_system=settings.is_system)
        page = WebPage(gate, sessions, hosts)
        servers[:0] = serve_port(at, page, connections, served[0], context.privileged.bind_port)

    if settings.listening.port:
        listen(settings.listening)
    context.web.listen = listen
    context.web.resume()
    return servers


def _stop(settings: Settings, stopped: asyncio.Event, number: int, signals: list[int]) -> None:
    """Handle a stop signal. USR2 (a successor follows) and USR1 (reload) keep the address and the socket, so
    that clients wait for the next daemon."""
    signals.append(number)
    stopped.set()
    if number not in (signal.SIGUSR2, signal.SIGUSR1):
        _attempt("address", partial((settings.data / "address").unlink, missing_ok=True))
        if not settings.is_system:  # else it is the launcher's
            _attempt("socket", partial(settings.socket.unlink, missing_ok=True))


def _attempt(what: str, step: Callable[[], object]) -> None:
    """Run one step of the clean-up. An error (a failing disk) must not prevent the other steps."""
    try:
        step()
    except Exception as error:
        log.warning("while stopping, %s: %s", what, error)


def _write_address(settings: Settings) -> None:
    """Write the path of the socket for clients: their XDG_RUNTIME_DIR may differ from the daemon's."""
    files.replace_private(settings.data / "address", os.fsencode(settings.socket))


def _tune_garbage_collector() -> None:
    """Freeze the loaded objects and collect only the youngest: jobs are not part of reference cycles.

    A scan of the older objects visits every waiting job: with a million it holds the loop for 0.1 s.
    `_collect_garbage` does it while there are few. The youngest are few as well: a scan of the rows of
    100,000 jobs, which are listed, took 50 ms of the loop.
    """
    gc.freeze()
    gc.set_threshold(10_000, NEVER, NEVER)
    gc.enable()


async def _collect_garbage(loop: Loop) -> None:
    """Collect what survived its first collection and has become garbage since. A few ms with few jobs."""
    for number in itertools.count(1):
        await asyncio.sleep(COLLECT_S)
        if len(loop.state.jobs) < FEW_JOBS or number % SELDOM == 0:
            gc.collect()


def _report_ready() -> None:
    """Tell `gflowd up` that the daemon serves."""
    _write_to_starter("ready\n")


def report_failure(error: GflowError) -> int:
    """Report to `gflowd up` and to standard error why the daemon does not start; returns the exit code.

    Not only to the log: it may be on the disk that is full.
    """
    message, hint = (text.encode()[:1500].decode(errors="ignore") for text in (error.message, error.hint))
    _write_to_starter(f"{error.exit_code}\n{message}\n{hint}\n")
    with suppress(OSError):
        sys.stderr.write(f"gflowd: {error.message}\n" + (f"{error.hint}\n" if error.hint else ""))
        sys.stderr.flush()
    return error.exit_code


def _write_to_starter(text: str) -> None:
    """Write to the pipe of `gflowd up`, in one write (at most PIPE_BUF). It may have been closed."""
    fd = os.environ.pop("GFLOW_READY_FD", "")
    if fd:
        with suppress(BrokenPipeError):
            os.write(int(fd), text.encode())
        os.close(int(fd))


def _folder_of(error: OSError, data: Path) -> Path:
    """The folder of the file in an error."""
    return Path(os.fsdecode(error.filename)).parent if isinstance(error.filename, str | bytes) else data
