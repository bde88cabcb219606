"""The daemon for all users: the launcher, which is root, and the scheduler, which it forks and which is not.

Both live and end together. If the scheduler is killed, the launcher executes itself: as after any restart,
the next ones find the running jobs by their run records.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import gflow
from gflow.config import timezone
from gflow.daemon.api.server import bind
from gflow.daemon.main import report_failure, run
from gflow.daemon.process import daemon_log, directories, instance_lock, scheduler_account
from gflow.daemon.process import reload as succession
from gflow.daemon.process.cpu_slices import ask_for_short_slices
from gflow.daemon.process.open_files import raise_open_files
from gflow.daemon.settings import Settings
from gflow.errors import GflowError, Refused
from gflow.privileged import channel, sandbox
from gflow.privileged.launcher import Launcher, LauncherSettings
from gflow.privileged.launcher_log import LauncherLog
from gflow.privileged.link import Link
from gflow.privileged.messages import HostLimits
from gflow.store.location import unusable_error

log = logging.getLogger("gflow.launcher")
# A scheduler that was killed within this time is not replaced: the next one would end likewise.
STEADY_S = 10.0
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGUSR1)


class _Outcome(NamedTuple):
    """How the daemon ended: its exit code, and whether a next one follows in this process."""

    code: int
    is_succeeded: bool = False


def launch(settings: Settings) -> int:
    """Run the daemon for all users in the foreground until SIGTERM or SIGINT. Returns the exit code."""
    logging.basicConfig(format=daemon_log.FORMAT)  # the scheduler rotates the file
    os.umask(0o077)
    succession.ignore_reload_signal()
    timezone.use(settings.config["timezone"])
    try:
        account = scheduler_account.find()
        directories.check_installation()
        directories.prepare(settings, account.pw_gid)
        inherited = succession.inherited_fd(succession.LOCK)
        lock = instance_lock.take(settings.data) if inherited is None else inherited
        directories.give_to_scheduler(settings, account.pw_uid, account.pw_gid)
        note = _log_to(settings)
    except GflowError as error:
        return report_failure(error)
    except OSError as error:
        return report_failure(unusable_error(settings.data, error))
    listener = succession.inherited_listener()
    ours, theirs = channel.make_pair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        if listener is not None:
            listener.close()
        return _schedule(settings, theirs, account.pw_uid, account.pw_gid)
    theirs.close()
    sockets = [] if listener is None else [listener]
    given = _launcher_settings(settings, account.pw_uid, sockets, note)
    try:
        outcome = asyncio.run(_supervise(settings, given, ours, pid))
        # There is no socket yet if the scheduler was killed before it had read its database.
        next_socket = _listen(settings, sockets) if outcome.is_succeeded else None
    except OSError as error:
        return report_failure(unusable_error(settings.run_dir, error))
    if next_socket is not None:
        succession.become_next(next_socket.detach(), lock)
    os.close(lock)
    return outcome.code


def _schedule(settings: Settings, sock: socket.socket, uid: int, gid: int) -> int:
    """Become the scheduler."""
    launcher = os.getppid()
    try:
        settings.listening.tls()  # only root may read the key
        logging.root.handlers.clear()
        log.handlers.clear()
        sandbox.enter(uid, gid)
        _check_readable()
    except GflowError as error:
        return report_failure(error)
    os.environ["HOME"] = str(settings.data)
    if os.getppid() != launcher:  # it ended before the kernel would have told us
        return 1
    return run(settings, link=Link(sock))


def _check_readable() -> None:
    """Refuse an installation that this process cannot read any more: it loads modules as it needs them."""
    for path in (gflow.__file__, os.__file__, sys.executable):
        if not os.access(path, os.R_OK):
            raise Refused(
                f"{path} cannot be read by the account {scheduler_account.NAME}",
                hint="install gflow where all users can read it, such as a virtual environment under /opt",
            )


async def _supervise(settings: Settings, given: LauncherSettings, sock: socket.socket, pid: int) -> _Outcome:
    """Carry out the scheduler's messages until it ends."""
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    launcher = Launcher(given, sock, pid)
    raise_open_files()
    ask_for_short_slices()
    gc.freeze()  # what the scheduler needs was loaded too: it is not to be scanned here
    gc.set_threshold(10_000, 200, 20)
    if fd := os.environ.pop("GFLOW_READY_FD", ""):
        os.close(int(fd))  # the scheduler reports
    log.info("launcher %d, scheduler %d", os.getpid(), pid)
    signals: list[int] = []
    for number in FORWARDED:
        loop.add_signal_handler(number, _forward, pid, number, signals)
    ended = asyncio.Event()
    pidfd = os.pidfd_open(pid)
    loop.add_reader(pidfd, ended.set)
    await ended.wait()
    loop.remove_reader(pidfd)
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    log.info("the scheduler has ended: %d", code)
    launcher.close()
    for handler in log.handlers:
        handler.flush()
    if code == 0 and set(signals) == {signal.SIGUSR1}:
        return _Outcome(0, True)
    if code < 0 and not signals and not launcher.distrust and time.monotonic() > began + STEADY_S:
        logging.getLogger("gflow.daemon").error(
            "the scheduler was ended by signal %d and is started again", -code
        )
        return _Outcome(1, True)
    if signal.SIGUSR2 not in signals and (code == 0 or not signals):
        with suppress(OSError):
            settings.socket.unlink(missing_ok=True)
    return _Outcome(1 if code < 0 else code)


def _forward(pid: int, number: int, signals: list[int]) -> None:
    signals.append(number)
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _launcher_settings(
    settings: Settings, uid: int, sockets: list[socket.socket], note: Callable[[str], None]
) -> LauncherSettings:
    return LauncherSettings(
        run_dir=settings.run_dir,
        socket_dir=settings.socket.parent,
        job_files_dir=settings.job_files_dir,
        min_uid=settings.config["people.min_uid"],
        scheduler_uid=uid,
        limits=HostLimits(settings.rules, settings.max_processes, settings.unkillable_s),
        isolates_devices=settings.gpu.isolate_devices and not settings.gpus,
        listening=(settings.listening.host, settings.listening.port),
        listen=partial(_listen, settings, sockets),
        note=note,
    )


def _listen(settings: Settings, sockets: list[socket.socket]) -> socket.socket:
    """The listening socket: that of the last daemon, or a new one. It stays open for the next daemon."""
    if not sockets:
        sockets.append(bind(settings.socket, public=True))
    return sockets[0].dup()


def _log_to(settings: Settings) -> Callable[[str], None]:
    """Log what the scheduler has done in a file that only root can read and change; what writes a line."""
    handler = LauncherLog(directories.launcher_log(settings))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    return handler.note
