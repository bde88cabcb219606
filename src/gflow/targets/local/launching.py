"""From an order to a running process, in one of three ways.

spawned    `posix_spawn`: the cheapest, for a job that needs nothing a spawn cannot do
forked     a child of our own sets limits and joins control groups, then becomes the job
prepared   a child forked beforehand, while the shim was idle: on busy cores a fresh process
           waits milliseconds for its first turn, and one that sleeps is woken at once

A child that cannot become the job says why through a pipe that closes by itself when it can.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from gflow.targets.local.cgroups import Group, Layers
from gflow.targets.local.frames import pack, unpack

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
SNAPSHOT = ".script"
RESET_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

Order = dict[str, Any]
ORDER_FIELDS = ("key", "attempt", "record", "cwd", "umask", "log", "error_log", "limits", "command")


class Started(NamedTuple):
    """A job's process; `trouble` will say, once it has ended, why it could not become the job."""

    pid: int
    trouble: int | None = None
    group: Group | None = None
    # Whether the kernel holds the memory limit; if not, the shim watches.
    held: bool = False


class Prepared(NamedTuple):
    """A child that waits to become a job."""

    pid: int
    orders: int
    trouble: int


class Launcher:
    """Starts jobs' processes, and keeps between jobs what the next one is likely to need again."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._block = b""
        self._variables: dict[bytes, bytes] = {}
        self._prepared: Prepared | None = None

    @property
    def is_prepared(self) -> bool:
        return self._prepared is not None

    def launch(self, order: Order) -> Started:
        """Start the job's process: own session, own environment, folder, umask and logs."""
        if order["leases"]:  # the job inherits them, and a child that was forked before has none
            self.discard()
        if self._prepared is not None:
            return self._wake(order)
        if order["limits"] or order["memory_mib"] or order["cpus"]:
            self.prepare()
            return self._wake(order)
        return Started(self._spawn(order))

    # ------------------------------------------------------------ spawned

    def _spawn(self, order: Order) -> int:
        environment = self._environment(order)
        logs = open_logs(order)
        try:
            argv = command_of(order, logs[0])
            program = find_program(argv[0], environment.get(b"PATH", DEFAULT_PATH), order["cwd"])
            os.chdir(order["cwd"])
            os.umask(order["umask"])
            actions = [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate((self._null, *logs))]
            return os.posix_spawn(
                program,
                argv,
                environment,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=RESET_SIGNALS,
            )
        finally:
            for fd in set(logs):
                os.close(fd)
            os.umask(0o077)
            os.chdir("/")

    def _environment(self, order: Order) -> dict[bytes, bytes]:
        """The submitter's variables and ours. One submitter's jobs often come in a row."""
        if order["environ"] != self._block:
            self._block = order["environ"]
            self._variables = variables_of(self._block)
        # Output is to be seen when it is printed, not when a buffer is full.
        environment = {b"PYTHONUNBUFFERED": b"1"}
        environment.update(self._variables)
        environment.update(order["extra"])
        return environment

    # ------------------------------------------------------------ forked and prepared

    def prepare(self) -> None:
        """Fork the child that will become the next job."""
        orders, orders_in = os.pipe2(os.O_CLOEXEC)
        trouble, trouble_in = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            os.close(orders_in)
            os.close(trouble)
            self._become(orders, trouble_in)
        os.close(orders)
        os.close(trouble_in)
        self._prepared = Prepared(pid, orders_in, trouble)

    def discard(self) -> None:
        """Let a prepared child go that is not needed: it ends when its pipe does."""
        if self._prepared is not None:
            os.close(self._prepared.orders)
            os.close(self._prepared.trouble)
            os.waitpid(self._prepared.pid, 0)
            self._prepared = None

    def _wake(self, order: Order) -> Started:
        """Hand the order to the prepared child."""
        assert self._prepared is not None
        child, self._prepared = self._prepared, None
        group, held = None, False
        if order["memory_mib"] or order["cpus"]:
            group = Group(self._layers, os.path.basename(order["record"]))
            held = group.make(order["memory_mib"], order["cpus"])
            group.join(child.pid)
        try:
            with open(child.orders, "wb", buffering=0) as pipe:
                data = memoryview(pack(order))
                while data:
                    data = data[pipe.write(data) :]
        except BrokenPipeError:  # somebody killed it while it waited
            os.close(child.trouble)
            self.prepare()
            return self._wake(order)
        return Started(child.pid, child.trouble, group, held)

    def _become(self, orders: int, trouble: int) -> NoReturn:
        """In the child: wait for the order, then be the job."""
        code = 126
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()
            for number in RESET_SIGNALS:
                with suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            self._rehearse()
            order = _read_order(orders)
            if order is not None:
                self._exec(order)
            code = 0
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            os.write(trouble, describe(error).encode(errors="replace"))
        except BaseException as error:
            os.write(trouble, repr(error).encode(errors="replace"))
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _rehearse(self) -> None:
        """Do once, with nothing at stake, what the order will make us do.

        After a fork every page that is written to is copied on its first touch; better now
        than when a job waits for it.
        """
        order = dict.fromkeys(ORDER_FIELDS, 0) | {"environ": self._block, "extra": {}, "attempt": 1}
        (order,) = unpack(bytearray(pack(order)))
        environment = self._environment(order)
        find_program("sh", environment.get(b"PATH", DEFAULT_PATH), "/")
        set_limits([])
        os.close(os.dup(self._null))

    def _exec(self, order: Order) -> None:
        environment = self._environment(order)
        logs = open_logs(order)
        argv = command_of(order, logs[0])
        program = find_program(argv[0], environment.get(b"PATH", DEFAULT_PATH), order["cwd"])
        os.chdir(order["cwd"])
        os.umask(order["umask"])
        set_limits(order["limits"])
        for to, fd in enumerate((self._null, *logs)):
            os.dup2(fd, to)
        os.execve(program, argv, environment)


def _read_order(fd: int) -> Order | None:
    """The order, or None when the shim lets us go."""
    buffer = bytearray()
    while data := os.read(fd, 1 << 20):
        buffer += data
        orders = unpack(buffer)
        if orders:
            order: Order = orders[0]
            return order
    return None


def set_limits(limits: list[tuple[int, int, int]]) -> None:
    """The submitter's limits, as far as we are allowed: a limit that cannot be raised stays."""
    for number, soft, hard in limits:
        _, allowed = resource.getrlimit(number)
        most = hard if allowed == resource.RLIM_INFINITY else allowed if hard < 0 else min(hard, allowed)
        wanted = most if soft < 0 else soft if most < 0 else min(soft, most)
        with suppress(OSError, ValueError):
            resource.setrlimit(number, (wanted, most))


# ---------------------------------------------------------------- what a job is made of


def variables_of(block: bytes) -> dict[bytes, bytes]:
    variables = {}
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if name and equals:
            variables[name] = value
    return variables


def open_logs(order: Order) -> tuple[int, int]:
    """Descriptors for standard output and error: one file in order, or two if that was asked for."""
    out = open_log(order["log"])
    error = out if order["error_log"] == order["log"] else open_log(order["error_log"])
    if order["attempt"] > 1:
        os.write(out, f"gflow: attempt {order['attempt']}\n".encode())
    return out, error


def open_log(path: str) -> int:
    """A descriptor that appends to this log; its folder is made if it is not there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, flags, 0o600)
    except OSError as error:
        raise OSError(error.errno, f"no log at {path}: {error.strerror}") from error


def command_of(order: Order, log: int) -> list[str]:
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


def find_program(program: str, path: bytes, cwd: str) -> str:
    """The file to execute, looked up in the job's own PATH."""
    if "/" in program:
        return os.path.join(cwd, program)
    for folder in os.fsdecode(path).split(":"):
        candidate = os.path.join(cwd, folder, program)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise FileNotFoundError(2, "command not found", program)


def describe(error: OSError) -> str:
    """`No such file or directory: /gone`."""
    return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
