"""The shim: runs one job at a time and sees it through to its very end.

Most jobs ask for nothing special and are run by the plain shim (`plain/`), which is this one in C.
This one runs the others, and all of them where there was no compiler; and it takes over from a
plain shim that has to cut a log, or to kill what it cannot find.

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

from gflow.targets.local import gpu_leases, run_record
from gflow.targets.local.cgroups import Layers
from gflow.targets.local.protocol import Order, from_fields, pack, unpack
from gflow.targets.local.run_record import Identity
from gflow.targets.local.shim.privileges import as_person
from gflow.targets.local.shim.process_tree import Held, tell_of
from gflow.targets.local.shim.spawn import Started, describe, launch, open_log
from gflow.targets.local.shim.supervise import Watch
from gflow.targets.outcome import SHORTAGES, End, deferred

PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def serve(channel: socket.socket, layers: Layers) -> None:
    """Run the jobs that come down `channel` until the daemon hangs up."""
    Shim(channel, layers).serve()


def take_over(words: list[str], layers: Layers) -> None:
    """Go on as the plain shim that we were until now: same process, children, locks and job."""
    fd, channel_fd, record_fd, trouble, pid, kill_in_ms, cpu_ms, peak_kib = map(int, words[:8])
    for kept in (channel_fd, record_fd, trouble):
        if kept >= 0:
            os.set_inheritable(kept, False)
    channel = socket.socket(fileno=channel_fd) if channel_fd >= 0 else socket.socketpair()[0]
    shim = Shim(channel, layers)
    if channel_fd < 0:
        shim.hung_up()
    with open(fd, "rb") as file:
        file.seek(0)
        shim.buffer += file.read()
    shim.sort_messages()
    watch = Watch(order := shim.orders.pop(0), Started(pid, trouble), layers)
    watch.take_over(kill_in_ms, cpu_ms, peak_kib)
    end = shim.attend(order, watch, record_fd)
    gpu_leases.release(list(map(int, words[8].split())))
    shim.finish(order, record_fd, end)
    shim.serve()


class Shim:
    """One job slot's worth of supervision."""

    def __init__(self, channel: socket.socket, layers: Layers) -> None:
        become_reaper()
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
        me = run_record.identity_of(os.getpid())
        assert me is not None
        self.me: Identity = me
        # A pidfd of the process of the job at hand.
        self.ended_event = -1
        # Whether this was the last job: another shim runs the next one.
        self.is_retiring = False
        self.layers = layers
        # A plain shim whose place we took has kept these from us until now.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    # ------------------------------------------------------------ orders

    def serve(self) -> None:
        """Run the jobs that come down the channel until the daemon hangs up."""
        while True:
            while not self.orders and self.connected and not self.is_retiring:
                self.wait(None)
            if not self.orders or self.is_retiring:
                return
            self.run(self.orders.pop(0))

    def wait(self, timeout_s: float | None) -> set[int]:
        """Wait for a signal, a message or the time; returns the signals that came."""
        signals: set[int] = set()
        for fd, _ in self.poll.poll(None if timeout_s is None else max(0, timeout_s * 1000)):
            if fd == self.wake:
                signals.update(os.read(self.wake, 4096))
            elif fd == self.channel.fileno():
                self._receive()
            elif fd == self.ended_event:  # it stays readable
                self.poll.unregister(fd)
                signals.add(signal.SIGCHLD)
        return signals

    def _receive(self) -> None:
        try:
            data = self.channel.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self.hung_up()
            return
        self.buffer += data
        self.sort_messages()

    def sort_messages(self) -> None:
        for message in unpack(self.buffer):
            if message[0] == b"run":
                self.orders.append(from_fields(message))
            else:
                what, key, attempt, argument = message
                self.words.append((what.decode(), int(key), int(attempt), int(argument)))

    def hung_up(self) -> None:
        self.connected = False
        self.poll.unregister(self.channel)

    def tell(self, *words: object) -> None:
        if self.connected:
            try:
                self.channel.sendall(pack(str(word).encode(errors="replace") for word in words))
            except OSError:  # the daemon died just now; the run record tells the next one
                self.hung_up()

    # ------------------------------------------------------------ one job

    def run(self, order: Order) -> None:
        """One attempt, from the claim to the written end."""
        try:
            fd = run_record.claim(order.record)
        except OSError as error:  # whatever it is, it is not about the job
            end = deferred(f"no run record can be made: {error.strerror}")
            self.tell("end", order.key, order.attempt, *run_record.words_of(end))
            return
        if fd is None:
            self.tell("taken", order.key, order.attempt)
            return
        run_record.write_identity(fd, "shim", self.me)
        try:
            held = gpu_leases.take(order.leases, order.sharing, rules=order.uid is not None)
        except OSError as error:
            end = _not_started(order, error, f"its GPU cannot be leased: {describe(error)}")
        else:
            end = End(None, None, gpu_leases.LEASED, 0, 0) if held is None else self._see_through(order, fd)
            gpu_leases.release(held or [])
        self.finish(order, fd, end)

    def finish(self, order: Order, fd: int, end: End) -> None:
        """Nothing of the job lives: say how it ended."""
        # The message first: it is what the daemon waits for. The record is for the case that nobody does.
        self.tell("end", order.key, order.attempt, *run_record.words_of(end))
        run_record.write_end(fd, end)
        os.close(fd)
        for path in (order.snapshot if order.script is not None else "", order.stop_file, order.terminal):
            if path:
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def _see_through(self, order: Order, fd: int) -> End:
        """Start the job and stay with it to its end."""
        try:
            started = launch(order, self.layers)
        except OSError as error:
            return _not_started(order, error, describe(error))
        job = run_record.identity_of(started.pid, self.me)
        if job is not None:
            run_record.write_identity(fd, "job", job)
        return self.attend(order, Watch(order, started, self.layers), fd)

    def attend(self, order: Order, watch: Watch, fd: int) -> End:
        """Wait until the job and all it started are gone; pass on what the daemon says meanwhile."""
        if watch.memory_event is not None:
            self.poll.register(watch.memory_event, select.POLLIN)
        self.poll.register(watch.ended_event, select.POLLIN)
        self.ended_event, told = watch.ended_event, ""
        while not watch.is_over:
            signals = self.wait(0 if self.words else watch.next_look())
            watch.hear(self._words_for(order), signals)
            watch.look(reap=signal.SIGCHLD in signals)
            while watch.notes:
                write_note(order, watch.notes.pop(0))
            if watch.stuck != told:
                told = watch.stuck
                run_record.write_stuck(fd, told)
                self.tell("stuck", order.key, order.attempt, told)
        if watch.memory_event is not None:
            self.poll.unregister(watch.memory_event)
        with suppress(KeyError):
            self.poll.unregister(watch.ended_event)
        if watch.held:
            self._leave_behind(order, watch.held)
        return watch.end(_could_not_start)

    def _leave_behind(self, order: Order, held: list[Held]) -> None:
        """What is left are zombies that others trace: name the tracers, and run no more jobs beside them."""
        self.is_retiring = True
        self.tell("retire", order.key, order.attempt)
        for zombie in held:
            line = (
                f"process {zombie.pid} of this job is dead, and its tracer {tell_of(zombie.tracer)} keeps it"
            )
            write_note(order, line)

    def _words_for(self, order: Order) -> list[tuple[str, Any]]:
        """What was said about this job. A word may come right behind its order, or after its end."""
        words = [
            (what, argument)
            for what, key, attempt, argument in self.words
            if (key, attempt) == (order.key, order.attempt)
        ]
        self.words.clear()
        return words


def become_reaper() -> None:
    """Whatever loses its parent below us becomes our child."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def _not_started(order: Order, error: OSError, problem: str) -> End:
    """The end of a job whose process could not be made: later, if the machine was short of something."""
    if error.errno in SHORTAGES:
        return deferred(describe(error))
    return _could_not_start(order, problem, isinstance(error, FileNotFoundError))


def _could_not_start(order: Order, problem: str, missing: bool) -> End:
    """The end of a job that never became one: the log and the reason say why."""

    write_note(order, f"the job could not start: {problem}")
    return End(127 if missing else 126, None, f"StartFailed: {problem}", 0, 0)


def write_note(order: Order, line: str) -> None:
    """A line in the job's log, written by its owner; none if the log cannot be opened."""

    def note() -> None:
        log = open_log(order.log)
        os.write(log, f"gflow: {line}\n".encode(errors="replace"))
        os.close(log)

    as_person(order.uid, note, order.user)


def _noted(_number: int, _frame: object) -> None:
    """The number is already in the wake-up pipe."""
