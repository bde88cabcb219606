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
import time
from contextlib import suppress
from typing import Any

from gflow.targets.local import record
from gflow.targets.local.frames import pack, unpack
from gflow.targets.local.record import End, Identity

PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 126
NOT_FOUND = 127
SNAPSHOT = ".script"
DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
_libc = ctypes.CDLL(None, use_errno=True)


def serve(channel: socket.socket) -> None:
    """Run the jobs that come down `channel` until the daemon hangs up."""
    shim = Shim(channel)
    while (order := shim.next_order()) is not None:
        shim.run(order)


class Shim:
    """One job slot's worth of supervision."""

    def __init__(self, channel: socket.socket) -> None:
        if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
        self.channel = channel
        self.connected = True
        self.buffer = bytearray()
        self.orders: list[dict[str, Any]] = []
        self.stops: list[tuple[int, int, bool]] = []
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
        self.launcher = Launcher()

    # ------------------------------------------------------------ orders

    def next_order(self) -> dict[str, Any] | None:
        """The next job, or None when there will be none."""
        while not self.orders and self.connected:
            self.wait(None)
        return self.orders.pop(0) if self.orders else None

    def wait(self, timeout_s: float | None) -> set[int]:
        """Wait for a signal, a message or the time; returns the signals that came."""
        signals: set[int] = set()
        for fd, _ in self.poll.poll(None if timeout_s is None else max(0, timeout_s * 1000)):
            if fd == self.wake:
                signals.update(os.read(self.wake, 4096))
            else:
                self._receive()
        return signals

    def _receive(self) -> None:
        try:
            data = self.channel.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self.connected = False
            self.poll.unregister(self.channel)
            return
        self.buffer += data
        for kind, body in unpack(self.buffer):
            if kind == "run":
                self.orders.append(body)
            elif kind == "stop":
                self.stops.append(body)

    def tell(self, message: object) -> None:
        if self.connected:
            try:
                self.channel.sendall(pack(message))
            except OSError:  # the daemon died just now; the run record tells the next one
                self.connected = False
                self.poll.unregister(self.channel)

    # ------------------------------------------------------------ one job

    def run(self, order: dict[str, Any]) -> None:
        """One attempt, from the claim to the written end."""
        key, attempt = order["key"], order["attempt"]
        fd = record.claim(order["record"])
        if fd is None:
            self.tell(("taken", key, attempt))
            return
        record.write_identity(fd, "shim", self.me)
        started = time.monotonic()
        try:
            pid = self.launcher.launch(order)
        except OSError as error:
            end = _could_not_start(order, error)
        else:
            job = record.identity_of(pid, self.me)
            if job is not None:
                record.write_identity(fd, "job", job)
            end = self._attend(order, pid)
        # The message first: it is what the daemon waits for. The record is for the case that nobody does.
        self.tell(("end", key, attempt, tuple(end), time.monotonic() - started))
        record.write_end(fd, end)
        os.close(fd)
        if order["script"] is not None:
            with suppress(FileNotFoundError):
                os.unlink(order["record"] + SNAPSHOT)

    def _attend(self, order: dict[str, Any], pid: int) -> End:
        """Wait until the job and all it started are gone; pass stop requests on."""
        stop_at: float | None = None
        status: tuple[int, int, int] | None = None
        while True:
            now = time.monotonic()
            signals = self.wait(None if stop_at is None else stop_at - now)
            children_left, ended = self._reap(pid) if signal.SIGCHLD in signals else (True, None)
            status = ended or status
            if not children_left and status:
                break
            wish = self._stop_wish(order, signals)
            if wish is not None and stop_at is None:
                _signal_group(pid, signal.SIGTERM)
            if wish is not None:
                stop_at = min(stop_at or now + wish, now + wish)
            overdue = stop_at is not None and time.monotonic() >= stop_at
            # A job that ended by itself leaves nobody behind; a job that is being
            # stopped may have children still saving their work within the grace time.
            if overdue or (status and stop_at is None):
                status = self._kill_all(pid) or status
                break
        assert status is not None
        code, cpu_ms, peak_kib = status
        return End(None if code < 0 else code, -code if code < 0 else None, "", cpu_ms, peak_kib)

    def _stop_wish(self, order: dict[str, Any], signals: set[int]) -> float | None:
        """Seconds of grace if somebody wants this job stopped, else None."""
        wish = None
        if signal.SIGTERM in signals:
            wish = order["grace_s"]
        for key, attempt, now in self.stops:
            if (key, attempt) == (order["key"], order["attempt"]):
                wish = 0.0 if now else order["grace_s"]
        self.stops.clear()
        return 0.0 if signal.SIGUSR1 in signals else wish

    def _reap(self, pid: int) -> tuple[bool, tuple[int, int, int] | None]:
        """Collect the dead: whether any child is left, and how the job itself ended if it did."""
        ended = None
        while True:
            try:
                dead, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False, ended
            if not dead:
                return True, ended
            if dead == pid:
                cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1000)
                ended = os.waitstatus_to_exitcode(status), cpu_ms, usage.ru_maxrss

    def _kill_all(self, pid: int) -> tuple[int, int, int] | None:
        """KILL everything below us until nothing is left, however it detached itself."""
        status = None
        while True:
            for child in _descendants(os.getpid()):
                _signal(child, signal.SIGKILL)
            children_left, ended = self._reap(pid)
            status = ended or status
            if not children_left:
                return status
            self.wait(0.05)


# ---------------------------------------------------------------- launching


RESET_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class Launcher:
    """Starts jobs' processes, and keeps between jobs what the next one is likely to need again."""

    def __init__(self) -> None:
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._block = b""
        self._variables: dict[bytes, bytes] = {}

    def launch(self, order: dict[str, Any]) -> int:
        """Start the job's process: own session, own environment, folder, umask and log."""
        environment = self._environment(order)
        log = _open_log(order)
        try:
            argv = _command(order, log)
            program = _find(argv[0], environment.get(b"PATH", DEFAULT_PATH), order["cwd"])
            os.chdir(order["cwd"])
            os.umask(order["umask"])
            return os.posix_spawn(
                program,
                argv,
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, self._null, 0)]
                + [(os.POSIX_SPAWN_DUP2, log, to) for to in (1, 2)],
                setsid=True,
                setsigmask=[],
                setsigdef=RESET_SIGNALS,
            )
        finally:
            os.close(log)
            os.umask(0o077)
            os.chdir("/")

    def _environment(self, order: dict[str, Any]) -> dict[bytes, bytes]:
        """The submitter's variables and ours. One submitter's jobs often come in a row."""
        if order["environ"] != self._block:
            self._block = order["environ"]
            self._variables = _variables(self._block)
        # Output is to be seen when it is printed, not when a buffer is full.
        environment = {b"PYTHONUNBUFFERED": b"1"}
        environment.update(self._variables)
        environment.update(order["extra"])
        return environment


def _variables(block: bytes) -> dict[bytes, bytes]:
    variables = {}
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if name and equals:
            variables[name] = value
    return variables


def _open_log(order: dict[str, Any]) -> int:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if order["attempt"] > 1:
        os.write(log, f"gflow: attempt {order['attempt']}\n".encode())
    return log


def _command(order: dict[str, Any], log: int) -> list[str]:
    """The argument list; for a script, from its own place if it is still what was submitted."""
    if order["script"] is None:
        return list(order["command"])
    path, text = order["script_path"], order["script"]
    if not path or not _has_content(path, text):
        if path:
            os.write(
                log, f"gflow: {path} changed since it was submitted; running it as it was then\n".encode()
            )
        path = order["record"] + SNAPSHOT
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o700)
        with open(fd, "wb") as file:
            file.write(text)
    return [*interpreter(text), path, *order["command"]]


def interpreter(script: bytes) -> list[str]:
    """What runs a script: its `#!` line as the kernel reads it, or bash."""
    if not script.startswith(b"#!"):
        return ["bash"]
    words = os.fsdecode(script[2:].split(b"\n", 1)[0]).strip().split(None, 1)
    return words or ["bash"]


def _has_content(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(text) + 1) == text
    except OSError:
        return False


def _find(program: str, path: bytes, cwd: str) -> str:
    """The file to execute, looked up in the job's own PATH."""
    if "/" in program:
        return os.path.join(cwd, program)
    for folder in os.fsdecode(path).split(":"):
        candidate = os.path.join(cwd, folder, program)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise FileNotFoundError(2, "command not found", program)


def _could_not_start(order: dict[str, Any], error: OSError) -> End:
    where = f": {error.filename}" if error.filename else ""
    problem = f"{error.strerror}{where}"
    try:
        log = _open_log(order)
        os.write(log, f"gflow: the job could not start: {problem}\n".encode(errors="replace"))
        os.close(log)
    except OSError:  # the log itself is what is missing; the reason below still says it
        problem = f"no log at {order['log']}: {problem}"
    code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
    return End(code, None, f"StartFailed: {problem}", 0, 0)


# ---------------------------------------------------------------- signals and processes


def _noted(_number: int, _frame: object) -> None:
    """The number is already in the wake-up pipe."""


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def _descendants(root: int) -> list[int]:
    """Every process below `root`, by one look at /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _parent_of(name)
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    line = [root]
    while line:
        below = children.get(line.pop(), [])
        found += below
        line += below
    return found


def _parent_of(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:  # it ended while we looked
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[1])
