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
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gflow.core.reasons import Reason, ReasonKind
from gflow.fault_points import point
from gflow.gpu.device_files import DeviceFiles
from gflow.gpu.owners import Owner as ProcessOwner
from gflow.privileged import channel, messages
from gflow.privileged.channel import Packet
from gflow.privileged.checked_target import CheckedTarget, StartRules
from gflow.privileged.in_process import InProcess
from gflow.privileged.launcher_log import describe
from gflow.privileged.messages import AnyMessage, HostLimits
from gflow.privileged.replies import give_sockets, reply, reply_failure
from gflow.privileged.user_calls import UserCalls
from gflow.targets.local import gpu_leases
from gflow.targets.local.run_record import Identity
from gflow.targets.local.target import LocalTarget
from gflow.targets.outcome import SHORTAGES
from gflow.targets.port import End, Ended, Run

log = logging.getLogger("gflow.launcher")
# Messages that are carried out before other work of the loop goes on.
AT_ONCE = 64
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
PAGE_PORTS = range(600, 1024)
LOGGED = (messages.Start, messages.Exec, messages.Stop, messages.Signal, messages.RunAs, messages.BindPort)
# Messages that have a socket for the answer.
CALLS = (
    messages.Exec, messages.Adopt, messages.Hello, messages.ForgetOthers, messages.Strays, messages.AccountOf,
    messages.OpenFile, messages.OwnerOf, messages.ShimOf, messages.RunsContainers, messages.VisibleDevices,
    messages.ProcessOf, messages.LeaseHolder, messages.RemoveLeases, messages.BindProgress,
    messages.RemoveProgress, messages.SshFolder, messages.Listen, messages.BindPort, messages.RunAs,
)  # fmt: skip


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
    """Carries out messages. All methods are called in the loop's thread."""

    def __init__(self, settings: LauncherSettings, sock: socket.socket, pid: int) -> None:
        self._settings = settings
        self._sock = sock
        # The process whose messages are taken.
        self._pid = pid
        self._lease_folder = gpu_leases.lease_folder()
        self._privileged = InProcess(settings.run_dir, settings.socket_dir, is_system=True)
        self.users = UserCalls(self._privileged, settings.min_uid, settings.scheduler_uid)
        self._owners = {
            trusts: self._privileged.process_owners(trust_pids=trusts) for trusts in (False, True)
        }
        self._local = LocalTarget(
            settings.run_dir, self._ended, settings.job_files_dir, self._unclaimed, self._stuck
        )
        self._local.open()
        self._epoch = self._local.epoch
        rules = StartRules(settings.min_uid, settings.scheduler_uid, self.users.account_of, self._is_lease)
        self._target = CheckedTarget(self._local, rules)
        problem = self._local.find_isolation_problem() if settings.isolates_devices else "it is off"
        self._isolation_problem = problem
        self.limits = settings.limits
        self._device_files = DeviceFiles()
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
            messages.ProcessOf: lambda one: self._privileged.process_facts(one.pid),
            messages.LeaseHolder: lambda one: self._privileged.lease_holder(self._lease(one.gpu)),
            messages.RemoveLeases: self._remove_leases,
            messages.RemoveProgress: lambda one: self._privileged.remove_progress_socket(one.uid),
            messages.SshFolder: self.users.make_ssh_folder,
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
                self._settings.note(describe(message))
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
        point("launcher.order-received")
        try:
            handler = self._handlers.get(type(message))
            if handler is not None:
                handler(message)
            else:
                messages.carry_out(message, self._target, self)
        except (OSError, KeyError) as error:
            log.warning("%s: %s", describe(message), error)
        except Exception:
            log.exception("%s", describe(message))
        point("launcher.order-done")

    def _answer(self, message: Any, answers: socket.socket, descriptors: list[int]) -> None:
        """Carry out a call, and send its answer."""
        point("launcher.call-received")
        try:
            match message:
                case messages.OpenFile():  # answers later
                    self.users.open_file(message, answers)
                    return
                case messages.RunAs():
                    self.users.run_as(message, answers, descriptors)
                    return
                case messages.BindProgress() | messages.Listen() | messages.BindPort():
                    give_sockets(self._bind(message), answers)
                case _:
                    handler = self._handlers.get(type(message))
                    found = handler(message) if handler else messages.carry_out(message, self._target, self)
                    point("launcher.call-done")
                    reply(answers, found)
                    point("launcher.call-answered")
        except Exception as error:
            reply_failure(answers, error, message)
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
        point("launcher.end-received")
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
        point("launcher.end-sent")

    def _stuck(self, run: Run, detail: str) -> None:
        self._send(messages.RunStuck(key=run.key, attempt=run.attempt, detail=detail))

    def _unclaimed(self, run: Run) -> bool:
        """The scheduler decides whether the run is ordered again, and knows then that it is lost."""
        self._send(messages.RunUnclaimed(key=run.key, attempt=run.attempt))
        return True

    def _send(self, event: Any) -> None:
        data = messages.encode(event)
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


def _descriptors_of(message: Any) -> int:
    """The number of descriptors that come with a message."""
    if isinstance(message, messages.RunAs):
        return 4
    return int(type(message) in CALLS)


def _reason_of(error: Exception) -> Reason:
    """Why a run did not start; it is tried again later if the machine lacks something."""
    why = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    is_shortage = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SHORTAGES)
    return Reason(ReasonKind.DEFERRED if is_shortage else ReasonKind.START_FAILED, why)


def _plain(identity: Identity | None) -> tuple[str, int, int, int] | None:
    return identity and (identity.boot, identity.namespace, identity.pid, identity.started)
