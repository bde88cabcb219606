"""The Python shim: runs one job at a time, from its start until none of its processes lives.

Most jobs have no special demands and run under the native shim (`native/`), the same in C. The Python shim
runs the others, and all jobs where gflow was installed without a compiler. It also takes over from a native
shim that has to rotate a log or to kill processes that it cannot find.

The shim is the subreaper of everything that the job starts: a process that loses its parent becomes the
shim's child, so no process can escape while the shim lives. If the daemon dies meanwhile, the shim finishes
its job, writes the end into the run record and exits.

Single thread, no event library: it polls the daemon's channel and the pipe into which the interpreter writes
the numbers of arriving signals.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import stat
from contextlib import suppress
from typing import Any

from gflow.targets.local import gpu_leases, run_record
from gflow.targets.local.cgroups import Layers
from gflow.targets.local.protocol import Order, from_fields, pack, unpack
from gflow.targets.local.run_record import Identity
from gflow.targets.local.shim.privileges import run_as_user
from gflow.targets.local.shim.process_tree import TracedZombie, describe_process
from gflow.targets.local.shim.spawn import StartedJob, describe, launch, open_log
from gflow.targets.local.shim.supervise import Watch
from gflow.targets.outcome import OUT_OF_MEMORY, SHORTAGES, ShimEnd, deferred

PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def serve(channel: socket.socket, layers: Layers) -> None:
    """Run the jobs that arrive on `channel` until the daemon closes it."""
    Shim(channel, layers).serve()


def take_over(words: list[str], layers: Layers) -> None:
    """Continue the job of the native shim that executed us: same process, children, locks and job."""
    fd, channel_fd, record_fd, trouble, pid, kill_in_ms, cpu_ms, peak_kib = map(int, words[:8])
    for kept in (channel_fd, record_fd, trouble):
        if kept >= 0:
            os.set_inheritable(kept, False)
    channel = socket.socket(fileno=channel_fd) if channel_fd >= 0 else socket.socketpair()[0]
    shim = Shim(channel, layers)
    if channel_fd < 0:
        shim.disconnect()
    with open(fd, "rb") as file:
        file.seek(0)
        shim.buffer += file.read()
    shim.dispatch_messages()
    watch = Watch(order := shim.orders.pop(0), StartedJob(pid, trouble), layers)
    watch.take_over(kill_in_ms, cpu_ms, peak_kib)
    end = shim.supervise(order, watch, record_fd)
    gpu_leases.release(list(map(int, words[8].split())))
    shim.finish(order, record_fd, end)
    shim.serve()


class Shim:
    """A shim process: its channel, and the job that it runs."""

    def __init__(self, channel: socket.socket, layers: Layers) -> None:
        become_reaper()
        self.channel = channel
        self.connected = True
        self.buffer = bytearray()
        self.orders: list[Order] = []
        # Requests of the daemon about running jobs: (what, key, attempt, argument).
        self.requests: list[tuple[str, int, int, Any]] = []
        self.wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        # A later daemon, which has no channel to us, sends TERM to stop and USR1 to kill.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, _wake_only)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        self.poll = select.poll()
        self.poll.register(self.wake, select.POLLIN)
        self.poll.register(channel, select.POLLIN)
        me = run_record.identity_of(os.getpid())
        assert me is not None
        self.me: Identity = me
        # A pidfd of the current job's process.
        self.ended_event = -1
        # Whether this shim exits after the current job.
        self.is_retiring = False
        self.layers = layers
        # The native shim that became this process had blocked signals.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    # ------------------------------------------------------------ orders

    def serve(self) -> None:
        """Run the jobs that arrive on the channel until the daemon closes it."""
        while True:
            while not self.orders and self.connected and not self.is_retiring:
                self.wait(None)
            if not self.orders or self.is_retiring:
                return
            self.run(self.orders.pop(0))

    def wait(self, timeout_s: float | None) -> set[int]:
        """Wait for a signal, a message or the timeout; the signals that arrived."""
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
            self.disconnect()
            return
        self.buffer += data
        self.dispatch_messages()

    def dispatch_messages(self) -> None:
        for message in unpack(self.buffer):
            if message[0] == b"run":
                self.orders.append(from_fields(message))
            else:
                what, key, attempt, argument = message
                self.requests.append((what.decode(), int(key), int(attempt), int(argument)))

    def disconnect(self) -> None:
        self.connected = False
        self.poll.unregister(self.channel)

    def send(self, *words: object) -> None:
        if self.connected:
            try:
                self.channel.sendall(pack([str(word).encode(errors="replace") for word in words]))
            except OSError:  # the daemon has died; the next one reads the run record
                self.disconnect()

    # ------------------------------------------------------------ one job

    def run(self, order: Order) -> None:
        """Run one attempt, from the claim of its record to the written end."""
        try:
            fd = run_record.claim(order.record)
        except OSError as error:  # a problem of the machine, not of the job
            end = deferred(f"no run record can be made: {error.strerror}")
            self.send("end", order.key, order.attempt, *run_record.format_end(end))
            return
        if fd is None:
            self.send("taken", order.key, order.attempt)
            return
        run_record.write_identity(fd, "shim", self.me)
        try:
            held = gpu_leases.take(order.leases, order.sharing, is_system=order.uid is not None)
        except OSError as error:
            end = _not_started(order, error, f"its GPU cannot be leased: {describe(error)}")
        else:
            end = ShimEnd(None, None, gpu_leases.LEASED, 0, 0) if held is None else self._run_job(order, fd)
            gpu_leases.release(held or [])
        self.finish(order, fd, end)

    def finish(self, order: Order, fd: int, end: ShimEnd) -> None:
        """Report the end of the job, of which no process lives any more, and remove its files."""
        if not order.exec_job and (line := _last_line(run_record.read(os.pread(fd, 1 << 16, 0)).why, end)):
            write_last_line(order, line)
        # The message first: the daemon waits for it. The record serves the next daemon if this one is gone.
        self.send("end", order.key, order.attempt, *run_record.format_end(end))
        run_record.write_end(fd, end)
        os.close(fd)
        for path in (order.snapshot if order.script is not None else "", order.stop_file, order.terminal):
            if path:
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def _run_job(self, order: Order, fd: int) -> ShimEnd:
        """Start the job and supervise it to its end."""
        try:
            started = launch(order, self.layers)
        except OSError as error:
            return _not_started(order, error, describe(error))
        job = run_record.identity_of(started.pid, self.me)
        if job is not None:
            run_record.write_identity(fd, "job", job)
        if order.uid is not None:
            run_record.write_uid(fd, order.uid)
        return self.supervise(order, Watch(order, started, self.layers), fd)

    def supervise(self, order: Order, watch: Watch, fd: int) -> ShimEnd:
        """Wait until no process of the job lives, and carry out the daemon's requests meanwhile."""
        if watch.memory_event is not None:
            self.poll.register(watch.memory_event, select.POLLIN)
        self.poll.register(watch.ended_event, select.POLLIN)
        self.ended_event, reported = watch.ended_event, ""
        while not watch.is_over:
            signals = self.wait(0 if self.requests else watch.next_look())
            watch.handle_requests(self._requests_for(order), signals)
            watch.do_due(reap=signal.SIGCHLD in signals)
            while watch.notes:
                write_note(order, watch.notes.pop(0))
            if watch.stuck != reported:
                reported = watch.stuck
                run_record.write_stuck(fd, reported)
                self.send("stuck", order.key, order.attempt, reported)
        if watch.memory_event is not None:
            self.poll.unregister(watch.memory_event)
        with suppress(KeyError):
            self.poll.unregister(watch.ended_event)
        if watch.held:
            self._retire(order, watch.held)
        return watch.end(_could_not_start)

    def _retire(self, order: Order, held: list[TracedZombie]) -> None:
        """Only zombies held by tracers are left: name the tracers in the log, and accept no further job."""
        self.is_retiring = True
        self.send("retire", order.key, order.attempt)
        for zombie in held:
            tracer = describe_process(zombie.tracer)
            write_note(order, f"process {zombie.pid} of this job is dead, and its tracer {tracer} keeps it")

    def _requests_for(self, order: Order) -> list[tuple[str, Any]]:
        """The requests about this job. A request may arrive right after its order, or after the job's end."""
        requests = [
            (what, argument)
            for what, key, attempt, argument in self.requests
            if (key, attempt) == (order.key, order.attempt)
        ]
        self.requests.clear()
        return requests


def become_reaper() -> None:
    """Become the subreaper: a process below us that loses its parent becomes our child."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def _not_started(order: Order, error: OSError, problem: str) -> ShimEnd:
    """The end of a job whose process could not be created; deferred if the machine was short of something."""
    if error.errno in SHORTAGES:
        return deferred(describe(error))
    return _could_not_start(order, problem, isinstance(error, FileNotFoundError))


def _could_not_start(order: Order, problem: str, missing: bool) -> ShimEnd:
    """The end of a job that could not be executed. Notes the reason in its log."""

    write_note(order, f"the job could not start: {problem}")
    return ShimEnd(127 if missing else 126, None, f"StartFailed: {problem}", 0, 0)


def _last_line(why: str, end: ShimEnd) -> str:
    """How the job ended, for its log; empty if it exited by itself: then its output is left as it is.

    `why`: the daemon's reason to stop it.
    """
    code, _, detail = end.problem.partition(": ")
    if why:
        return why
    if code == OUT_OF_MEMORY:
        return f"ran out of memory: {detail}"
    return f"was killed by signal {end.signal} ({signal.strsignal(end.signal)})" if end.signal else ""


def write_last_line(order: Order, text: str) -> None:
    """Write how the job ended to its log, as its owner, if the log is still a regular file."""
    label = os.path.basename(order.record).rpartition(".")[0]

    def note() -> None:
        # The job is gone: its log is not made again. To open a pipe would let other jobs that wait for its
        # reader go on.
        if not stat.S_ISREG(os.stat(order.log).st_mode):
            return
        log = os.open(order.log, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        status = os.fstat(log)
        if stat.S_ISREG(status.st_mode):
            is_open_line = status.st_size > 0 and os.pread(log, 1, status.st_size - 1) != b"\n"
            line = f"gflow: job {label} {text}\n".encode(errors="replace")
            os.write(log, b"\n" + line if is_open_line else line)
        os.close(log)

    run_as_user(order.uid, note, order.user)


def write_note(order: Order, line: str) -> None:
    """Write a line to the job's log, as its owner; skipped if the log cannot be opened."""

    def note() -> None:
        log = open_log(order.log)
        os.write(log, f"gflow: {line}\n".encode(errors="replace"))
        os.close(log)

    run_as_user(order.uid, note, order.user)


def _wake_only(_number: int, _frame: object) -> None:
    """Signal handler that does nothing: the interpreter has written the number to the wake-up pipe."""
