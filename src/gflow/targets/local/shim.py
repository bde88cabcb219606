"""The shim: runs one job at a time and sees it through to its very end.

It is the reaper of everything the job starts: a process that loses its parent becomes the
shim's child, so nothing can slip away while the shim lives. The daemon may die meanwhile;
then the shim finishes its job, writes the end into the run record, and goes.

Single thread, no event library: it waits on two descriptors, the daemon's channel and
the pipe into which the interpreter writes the numbers of arriving signals.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
from contextlib import suppress
from typing import Any

from gflow.targets.local import leases, record
from gflow.targets.local.cgroups import Layers
from gflow.targets.local.frames import pack, unpack
from gflow.targets.local.launching import SNAPSHOT, Launcher, Order, Started, describe, open_log
from gflow.targets.local.record import End, Identity
from gflow.targets.local.watching import Watch

PR_SET_CHILD_SUBREAPER = 36
# An idle shim forks its next job's child after this long: one that is busy has no time for it.
PREPARE_AFTER_S = 0.004
BUSY_PER_CORE = 1.5
_libc = ctypes.CDLL(None, use_errno=True)


def serve(channel: socket.socket, layers: Layers) -> None:
    """Run the jobs that come down `channel` until the daemon hangs up."""
    shim = Shim(channel, layers)
    while (order := shim.next_order()) is not None:
        shim.run(order)
    shim.launcher.discard()


class Shim:
    """One job slot's worth of supervision."""

    def __init__(self, channel: socket.socket, layers: Layers) -> None:
        if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
        self.channel = channel
        self.connected = True
        self.buffer = bytearray()
        self.orders: list[Order] = []
        # What the daemon says about running jobs: (what, key, attempt, argument).
        self.words: list[tuple[str, int, int, Any]] = []
        self.wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        # TERM and USR1 are how a later daemon, which has no channel to us, says stop and kill.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, _noted)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        self.poll = select.poll()
        self.poll.register(self.wake, select.POLLIN)
        self.poll.register(channel, select.POLLIN)
        me = record.identity_of(os.getpid())
        assert me is not None
        self.me: Identity = me
        self.layers = layers
        self.launcher = Launcher(layers)

    # ------------------------------------------------------------ orders

    def next_order(self) -> Order | None:
        """The next job, or None when there will be none.

        On busy cores a child is forked for it beforehand. On quiet ones a spawn is quicker.
        """
        if not self.orders:
            self.wait(PREPARE_AFTER_S)
        if not self.orders and not self.launcher.is_prepared and machine_is_busy():
            self.launcher.prepare()
        while not self.orders and self.connected:
            self.wait(None)
        return self.orders.pop(0) if self.orders else None

    def wait(self, timeout_s: float | None) -> set[int]:
        """Wait for a signal, a message or the time; returns the signals that came."""
        signals: set[int] = set()
        for fd, _ in self.poll.poll(None if timeout_s is None else max(0, timeout_s * 1000)):
            if fd == self.wake:
                signals.update(os.read(self.wake, 4096))
            elif fd == self.channel.fileno():
                self._receive()
        return signals

    def _receive(self) -> None:
        try:
            data = self.channel.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self._hung_up()
            return
        self.buffer += data
        for kind, body in unpack(self.buffer):
            if kind == "run":
                self.orders.append(body)
            else:
                self.words.append((kind, *body))

    def _hung_up(self) -> None:
        self.connected = False
        self.poll.unregister(self.channel)

    def tell(self, message: object) -> None:
        if self.connected:
            try:
                self.channel.sendall(pack(message))
            except OSError:  # the daemon died just now; the run record tells the next one
                self._hung_up()

    # ------------------------------------------------------------ one job

    def run(self, order: Order) -> None:
        """One attempt, from the claim to the written end."""
        key, attempt = order["key"], order["attempt"]
        fd = record.claim(order["record"])
        if fd is None:
            self.tell(("taken", key, attempt))
            return
        record.write_identity(fd, "shim", self.me)
        end = self._run_leased(order, fd)
        # The message first: it is what the daemon waits for. The record is for the case that nobody does.
        self.tell(("end", key, attempt, tuple(end)))
        record.write_end(fd, end)
        os.close(fd)
        for suffix in (SNAPSHOT if order["script"] is not None else "", order["stop_file"]):
            if suffix:
                with suppress(FileNotFoundError):
                    os.unlink(suffix if suffix.startswith("/") else order["record"] + suffix)

    def _run_leased(self, order: Order, fd: int) -> End:
        """The job, while its GPUs are leased."""
        try:
            held = leases.take(order["leases"], order["sharing"])
        except OSError as error:
            return _could_not_start(order, f"its GPU cannot be leased: {describe(error)}", missing=False)
        if held is None:
            return End(None, None, leases.LEASED, 0, 0)
        end = self._see_through(order, fd)
        leases.release(held)
        return end

    def _see_through(self, order: Order, fd: int) -> End:
        """Start the job and stay with it to its end."""
        try:
            started = self.launcher.launch(order)
        except OSError as error:
            return _could_not_start(order, describe(error), isinstance(error, FileNotFoundError))
        job = record.identity_of(started.pid, self.me)
        if job is not None:
            record.write_identity(fd, "job", job)
        return self._attend(order, started)

    def _attend(self, order: Order, started: Started) -> End:
        """Wait until the job and all it started are gone; pass on what the daemon says meanwhile."""
        watch = Watch(order, started, self.layers)
        if watch.memory_event is not None:
            self.poll.register(watch.memory_event, select.POLLIN)
        while not watch.is_over:
            signals = self.wait(0 if self.words else watch.next_look())
            watch.hear(self._words_for(order), signals)
            watch.look(reap=signal.SIGCHLD in signals)
        if watch.memory_event is not None:
            self.poll.unregister(watch.memory_event)
        return watch.end(_could_not_start)

    def _words_for(self, order: Order) -> list[tuple[str, Any]]:
        """What was said about this job. A word may come right behind its order, or after its end."""
        words = [
            (what, argument)
            for what, key, attempt, argument in self.words
            if (key, attempt) == (order["key"], order["attempt"])
        ]
        self.words.clear()
        return words


def _could_not_start(order: Order, problem: str, missing: bool) -> End:
    """The end of a job that never became one: the log and the reason say why."""
    with suppress(OSError):  # the log itself may be what is missing; the reason says it anyway
        log = open_log(order["log"])
        os.write(log, f"gflow: the job could not start: {problem}\n".encode(errors="replace"))
        os.close(log)
    return End(127 if missing else 126, None, f"StartFailed: {problem}", 0, 0)


def machine_is_busy() -> bool:
    """Whether processes have been queueing for a core of late. A moment's look would mostly see ourselves."""
    return os.getloadavg()[0] > BUSY_PER_CORE * (os.cpu_count() or 1)


def _noted(_number: int, _frame: object) -> None:
    """The number is already in the wake-up pipe."""
