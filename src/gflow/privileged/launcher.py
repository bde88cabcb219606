"""The launcher: the process of root that runs jobs and uses root's rights for a scheduler without any.

It takes messages from one process, which it knows from the kernel, checks them, and keeps a log of them. It
serves no network and opens no database. An invalid message ends the scheduler.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gflow.core.reasons import Reason, ReasonKind
from gflow.errors import Refused
from gflow.gpu.device_files import DeviceFiles
from gflow.gpu.owners import Owner as ProcessOwner
from gflow.privileged import channel, messages
from gflow.privileged.accounts import Account
from gflow.privileged.channel import Packet
from gflow.privileged.checked_target import CheckedTarget, StartRules, why_not_a_user
from gflow.privileged.in_process import InProcess
from gflow.privileged.messages import AnyMessage, HostLimits
from gflow.targets.file_rights import LocalOpener, Owner
from gflow.targets.local import gpu_leases
from gflow.targets.local.run_record import Identity
from gflow.targets.local.target import LocalTarget
from gflow.targets.outcome import SHORTAGES
from gflow.targets.port import End, Ended, Run
from gflow.targets.slurm.ssh import user_account

log = logging.getLogger("gflow.launcher")
# Messages that are carried out before other work of the loop goes on.
AT_ONCE = 64
# Files of users that are being opened: each has a thread, because it may be on a disk that does not answer.
MOST_OPENING = 256
# Seconds for which an entry of the user database is used.
ACCOUNT_S = 2.0
MOST_ACCOUNTS = 4096
# Programs of users that may run at once.
MOST_PROGRAMS = 512
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
PAGE_PORTS = range(600, 1024)
LOGGED = (messages.Start, messages.Exec, messages.Stop, messages.Signal, messages.RunAs, messages.BindPort)
# Messages that have a socket for the answer.
CALLS = (
    messages.Exec, messages.Adopt, messages.Hello, messages.ForgetOthers, messages.Strays, messages.AccountOf,
    messages.OpenFile, messages.OwnerOf, messages.ShimOf, messages.RunsContainers, messages.VisibleDevices,
    messages.LeaseHolder, messages.RemoveLeases, messages.BindProgress, messages.RemoveProgress,
    messages.SshFolder, messages.Listen, messages.BindPort, messages.RunAs,
)  # fmt: skip
_encode = msgspec.msgpack.Encoder().encode


class LauncherSettings(NamedTuple):
    """What root's configuration says."""

    run_dir: Path
    socket_dir: Path
    job_files_dir: Path
    # The lowest uid that may run jobs, and the uid of the scheduler.
    min_uid: int
    scheduler_uid: int
    limits: HostLimits
    # Whether a job may open only its own GPUs.
    isolates_devices: bool
    # Host and port of the web page; port 0: none.
    listening: tuple[str, int]
    # Makes the daemon's listening socket.
    listen: Callable[[], socket.socket]
    # Writes a line to the launcher's log.
    note: Callable[[str], None] = log.info


class Launcher:
    """Carries out messages. All methods but `_open_now` are called in the loop's thread."""

    def __init__(self, settings: LauncherSettings, sock: socket.socket, pid: int) -> None:
        self._settings = settings
        self._sock = sock
        # The process whose messages are taken.
        self._pid = pid
        self._accounts: dict[int, tuple[float, Account | None]] = {}
        self._lease_folder = gpu_leases.lease_folder()
        self._privileged = InProcess(settings.run_dir, settings.socket_dir, is_system=True)
        self._owners = {
            trusts: self._privileged.process_owners(trust_pids=trusts) for trusts in (False, True)
        }
        self._local = LocalTarget(
            settings.run_dir, self._ended, settings.job_files_dir, self._unclaimed, self._stuck
        )
        self._local.open()
        self._epoch = self._local.epoch
        rules = StartRules(settings.min_uid, settings.scheduler_uid, self.account_of, self._is_lease)
        self._target = CheckedTarget(self._local, rules)
        problem = self._local.find_isolation_problem() if settings.isolates_devices else "it is off"
        self._isolation_problem = problem
        self.limits = settings.limits
        self._device_files = DeviceFiles()
        self._opening = threading.BoundedSemaphore(MOST_OPENING)
        self._programs = 0
        # Events that did not fit into the channel.
        self._waiting: deque[bytes] = deque()
        # Why the scheduler was ended; empty: it was not.
        self.distrust = ""
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[type, Callable[[Any], Any]] = {
            messages.Start: self._start,
            messages.Hello: self._greet,
            messages.EarlierEpoch: self._set_earlier_epoch,
            messages.ForgetOthers: lambda one: self._target.forget_others(set(one.keep)),
            messages.Strays: lambda one: self._strays(),
            messages.AccountOf: lambda one: self._privileged.account(one.uid),
            messages.OwnerOf: lambda one: self._owner_of(one.pid, one.trusts_pids),
            messages.ShimOf: lambda one: self._owners[False].shim_of(one.run),
            messages.RunsContainers: lambda one: self._owners[False].runs_containers(one.pid),
            messages.VisibleDevices: lambda one: self._privileged.visible_devices(one.pid),
            messages.LeaseHolder: lambda one: self._privileged.lease_holder(self._lease(one.gpu)),
            messages.RemoveLeases: self._remove_leases,
            messages.RemoveProgress: lambda one: self._privileged.remove_progress_socket(one.uid),
            messages.SshFolder: self._make_ssh_folder,
        }
        self._loop.add_reader(sock, self._readable)
        self._local.warm_up()

    def close(self) -> None:
        """Release all shims; jobs continue."""
        self._loop.remove_reader(self._sock)
        self._local.close()

    # ------------------------------------------------------------ messages

    def _readable(self) -> None:
        for _ in range(AT_ONCE):
            try:
                packet = channel.receive(self._sock, messages.MAX_BYTES)
                if packet is None:
                    self._loop.remove_reader(self._sock)
                    return
                self._take(packet)
            except BlockingIOError:
                return
            except ValueError as error:
                self._end_scheduler(str(error))
                return

    def _end_scheduler(self, why: str) -> None:
        """End a scheduler that sent something which no scheduler sends."""
        self.distrust = why
        log.error("the scheduler is ended: %s", why)
        self._loop.remove_reader(self._sock)
        with suppress(ProcessLookupError):
            os.kill(self._pid, 9)

    def _take(self, packet: Packet) -> None:
        """Carry out one message. ValueError: it is invalid."""
        descriptors = list(packet.descriptors)
        try:
            if (packet.pid, packet.uid) != (self._pid, self._settings.scheduler_uid):
                raise ValueError(f"a message came from process {packet.pid} of user {packet.uid}")
            message = self._decode(packet.data)
            if message is None:
                return
            if len(descriptors) != _descriptors_of(message):
                raise ValueError(f"{type(message).__name__} came with {len(descriptors)} descriptors")
            if type(message) in LOGGED:
                self._settings.note(_described(message))
            if type(message) not in CALLS:
                self._obey(message)
                return
            try:
                answers = socket.socket(fileno=descriptors[0])
            except OSError:
                raise ValueError("a call came without a socket") from None
            descriptors.pop(0)
            answers.setblocking(False)
            self._answer(message, answers, descriptors)
            descriptors = []
        finally:
            channel.close_all(descriptors)

    def _decode(self, data: bytes) -> AnyMessage | None:
        """Decode a message; None: it was a start with a field out of bounds, and is refused."""
        try:
            return messages.decode(data)
        except ValueError as error:
            run = messages.claimed_run(data)
            log.warning("refused to start %s: %s", run.name, error)
            self._ended(Ended(run, End(problem=Reason(ReasonKind.START_FAILED, str(error)))))
            return None

    def _obey(self, message: Any) -> None:
        try:
            handler = self._handlers.get(type(message))
            if handler is not None:
                handler(message)
            else:
                messages.carry_out(message, self._target, self)
        except (OSError, KeyError) as error:
            log.warning("%s: %s", _described(message), error)
        except Exception:
            log.exception("%s", _described(message))

    def _answer(self, message: Any, answers: socket.socket, descriptors: list[int]) -> None:
        """Carry out a call, and send its answer."""
        try:
            match message:
                case messages.OpenFile():  # answers later
                    self._open_file(message, answers)
                    return
                case messages.RunAs():
                    self._run_as(message, answers, descriptors)
                    return
                case messages.BindProgress() | messages.Listen() | messages.BindPort():
                    _give_sockets(self._bind(message), answers)
                case _:
                    handler = self._handlers.get(type(message))
                    found = handler(message) if handler else messages.carry_out(message, self._target, self)
                    _reply(answers, found)
        except Exception as error:
            _reply_failure(answers, error, message)
        finally:
            channel.close_all(descriptors)
        answers.close()

    # ------------------------------------------------------------ jobs

    def _start(self, message: messages.Start) -> None:
        try:
            self._target.start(messages.launch_of(message, self))
        except Exception as error:
            if not isinstance(error, (OSError, KeyError, MemoryError)):
                log.exception("%s cannot be started", message.run)
            self._ended(Ended(message.run, End(problem=_reason_of(error))))
        if self._local.epoch != self._epoch:
            self._epoch = self._local.epoch
            self._send(messages.FolderRemoved(epoch=self._epoch))

    def leases(self, uuids: Sequence[str]) -> tuple[str, ...]:
        """Lock files of these GPUs (`messages.Machine`)."""
        return tuple(map(self._lease, uuids))

    def device_rules(self, uuids: Sequence[str]) -> str:
        """Which devices a job with these cards may open; empty: all."""
        return "" if self._isolation_problem else self._device_files.rules(uuids)

    def _lease(self, uuid: str) -> str:
        if not self._lease_folder:
            raise FileNotFoundError(errno.ENOENT, "there is no folder for leases")
        return f"{self._lease_folder}/{uuid}"

    def _remove_leases(self, message: messages.RemoveLeases) -> None:
        self._privileged.remove_leases(self.leases(message.gpus))

    def _is_lease(self, path: str) -> bool:
        return os.path.dirname(path) == self._lease_folder

    def account_of(self, uid: int) -> Account | None:
        """The account of this uid, at most ACCOUNT_S old."""
        now = time.monotonic()
        looked_at, account = self._accounts.get(uid, (-ACCOUNT_S, None))
        if now - looked_at >= ACCOUNT_S:
            if len(self._accounts) >= MOST_ACCOUNTS:
                self._accounts.clear()
            account = self._privileged.account(uid)
            self._accounts[uid] = now, account
        return account

    def _greet(self, message: messages.Hello) -> messages.Greeting:
        return messages.Greeting(
            epoch=self._local.epoch,
            isolation_problem=self._isolation_problem,
            lease_folder=self._lease_folder,
            job_files=str(self._settings.job_files_dir),
        )

    def _set_earlier_epoch(self, message: messages.EarlierEpoch) -> None:
        self._local.earlier_epoch = message.epoch

    def _strays(self) -> list[messages.Stray]:
        return [
            messages.Stray(name=name, shim=_plain(content.shim), job=_plain(content.job))
            for name, content in self._local.strays().items()
        ]

    # ------------------------------------------------------------ events

    def _ended(self, ended: Ended) -> None:
        (key, attempt), end = ended
        self._send(
            messages.RunEnded(
                key=key,
                attempt=attempt,
                code=end.code,
                signal=end.signal,
                problem=str(end.problem),
                cpu_ms=end.cpu_ms,
                peak_kib=end.peak_kib,
                ago_s=end.ago_s,
            )
        )

    def _stuck(self, run: Run, detail: str) -> None:
        self._send(messages.RunStuck(key=run.key, attempt=run.attempt, detail=detail))

    def _unclaimed(self, run: Run) -> bool:
        """The scheduler decides whether the run is ordered again, and knows then that it is lost."""
        self._send(messages.RunUnclaimed(key=run.key, attempt=run.attempt))
        return True

    def _send(self, event: Any) -> None:
        data = _encode(event)
        if not self._waiting:
            try:
                channel.send(self._sock, data)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._writable)
            except OSError:  # the scheduler has ended; its successor finds the run records
                return
        self._waiting.append(data)

    def _writable(self) -> None:
        while self._waiting:
            try:
                channel.send(self._sock, self._waiting[0])
            except BlockingIOError:
                return
            except OSError:  # the scheduler has ended
                self._waiting.clear()
                break
            self._waiting.popleft()
        self._loop.remove_writer(self._sock)

    # ------------------------------------------------------------ users

    def _check_user(self, uid: int) -> Account:
        """The account, if it is one that may run jobs. PermissionError: it may not."""
        account = self.account_of(uid)
        why = why_not_a_user(uid, self._settings.min_uid, self._settings.scheduler_uid)
        if why or account is None:
            raise PermissionError(errno.EPERM, why or f"there is no account with uid {uid}")
        return account

    def _open_file(self, message: messages.OpenFile, answers: socket.socket) -> None:
        account = self._check_user(message.uid)
        if not self._opening.acquire(blocking=False):
            raise OSError(errno.EAGAIN, f"{MOST_OPENING} files are being opened")
        opener = LocalOpener(Owner(message.uid, account.gid))
        threading.Thread(target=self._open_now, args=(opener, message, answers), daemon=True).start()

    def _open_now(self, opener: LocalOpener, message: messages.OpenFile, answers: socket.socket) -> None:
        with answers:
            try:
                fd = _open(opener, message)
                _reply(answers, True, [fd])
                os.close(fd)
            except Exception as error:
                _reply_failure(answers, error, message)
            finally:
                self._opening.release()

    def _make_ssh_folder(self, message: messages.SshFolder) -> str:
        account = self._check_user(message.uid)
        return str(self._privileged.make_ssh_folder(Owner(message.uid, account.gid)))

    def _run_as(self, message: messages.RunAs, answers: socket.socket, pipes: Sequence[int]) -> None:
        """Run a program as a user until its end, or until the other end of the socket is shut."""
        account = self._check_user(message.uid)
        if account.barred or account.name != message.user:
            raise PermissionError(errno.EPERM, f"uid {message.uid} is not {message.user}, or barred")
        if self._programs >= MOST_PROGRAMS:
            raise OSError(errno.EAGAIN, f"{MOST_PROGRAMS} programs of users run already")
        process = user_account.start(account, message.uid, message.program, message.words, pipes)
        self._programs += 1
        self._loop.create_task(self._watch_program(process, answers))
        _reply(answers, True)

    async def _watch_program(self, process: subprocess.Popen[bytes], answers: socket.socket) -> None:
        pidfd = os.pidfd_open(process.pid)
        ended, shut = asyncio.Event(), asyncio.Event()
        self._loop.add_reader(pidfd, ended.set)
        self._loop.add_reader(answers, shut.set)
        waits = [asyncio.ensure_future(one.wait()) for one in (ended, shut)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._loop.remove_reader(answers)
            if not ended.is_set():
                process.kill()
                await ended.wait()
            _reply(answers, process.wait())
        finally:
            for one in waits:
                one.cancel()
            self._loop.remove_reader(pidfd)
            self._loop.remove_reader(answers)
            os.close(pidfd)
            answers.close()
            self._programs -= 1

    # ------------------------------------------------------------ processes and sockets

    def _owner_of(self, pid: int, trusts_pids: bool) -> ProcessOwner:
        owners = self._owners[trusts_pids]
        owners.keep(())  # the scheduler has a cache of its own
        return owners.of(pid)

    def _bind(
        self, message: messages.BindProgress | messages.Listen | messages.BindPort
    ) -> list[socket.socket]:
        if isinstance(message, messages.Listen):
            return [self._settings.listen()]
        if isinstance(message, messages.BindProgress):
            return [self._privileged.bind_progress_socket(message.uid)]
        is_page = message.host in LOOPBACK and message.port in PAGE_PORTS
        if not is_page and (message.host, message.port) != self._settings.listening:
            raise PermissionError(errno.EPERM, f"port {message.port} of {message.host} is not configured")
        return self._privileged.bind_port(message.host, message.port)


def _give_sockets(found: list[socket.socket], answers: socket.socket) -> None:
    try:
        _reply(answers, True, [sock.fileno() for sock in found])
    finally:
        for sock in found:
            sock.close()


def _descriptors_of(message: Any) -> int:
    """The number of descriptors that come with a message."""
    if isinstance(message, messages.RunAs):
        return 4
    return int(type(message) in CALLS)


def _open(opener: LocalOpener, message: messages.OpenFile) -> int:
    match message.what:
        case "log":
            return opener.open_log(message.path)
        case "file":
            return opener.open_file(message.path)
        case "folder":
            return opener.open_folder(message.path)
    return opener.open_copy(message.path, writes=message.what == "copy to write")


def _reply(answers: socket.socket, value: Any, descriptors: Sequence[int] = ()) -> None:
    with suppress(OSError):  # the scheduler does not want it any more
        channel.send(answers, _encode((value,)), descriptors)


def _reply_failure(answers: socket.socket, error: Exception, message: Any) -> None:
    """Say why a call failed. An error that is not expected is logged."""
    match error:
        case Refused():
            failure = messages.Failure(text=error.message)
        case OSError():
            path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
            failure = messages.Failure(
                errno=error.errno or errno.EINVAL, text=error.strerror or str(error), path=path
            )
        case _:
            log.error("%s: %s", _described(message), error, exc_info=error)
            failure = messages.Failure(errno=errno.EINVAL, text=str(error))
    with suppress(OSError, UnicodeEncodeError):
        channel.send(answers, _encode(failure))


def _described(message: Any) -> str:
    """A message for the log: whom it is about, and no environment."""
    what = type(message).__struct_config__.tag
    match message:
        case messages.Order():
            return f"{what} {message.run.name} uid {message.uid} {' '.join(message.command)!a:.200}"
        case messages.Message():
            return f"{what} {message.run.name}"
        case messages.RunAs():
            return f"{what} uid {message.uid} {message.program} {' '.join(message.words)!a:.200}"
    return f"{what} {message!a:.200}"


def _reason_of(error: Exception) -> Reason:
    """Why a run did not start; it is tried again later if the machine lacks something."""
    why = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    is_shortage = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SHORTAGES)
    return Reason(ReasonKind.DEFERRED if is_shortage else ReasonKind.START_FAILED, why)


def _plain(identity: Identity | None) -> tuple[str, int, int, int] | None:
    return identity and (identity.boot, identity.namespace, identity.pid, identity.started)
