"""From an order to a running process: a child of ours joins its control groups, sets its limits
and becomes the job. One that cannot says why through a pipe that closes by itself when it can.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn

from gflow.targets.local import run_record
from gflow.targets.local.cgroups import Group, Layers
from gflow.targets.local.protocol import Limits, Order
from gflow.targets.local.shim import privileges
from gflow.targets.local.shim.terminal import Terminal, close_others, end_like
from gflow.wire import terminal_protocol

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
RESET_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class Started(NamedTuple):
    """A job's process; `trouble` will say, once it has ended, why it could not become the job."""

    pid: int
    trouble: int | None = None
    group: Group | None = None
    # Whether the kernel holds the memory limit; if not, the shim watches.
    held: bool = False


def launch(order: Order, layers: Layers) -> Started:
    """Start the job's process: own session, own environment, folder, umask and logs."""
    group, held = None, False
    if order.memory_mib or order.cpus:
        group = Group(layers, os.path.basename(order.record))
        held = group.make(order.memory_mib, order.cpus, order.max_processes)
    if order.uid is not None and order.script is not None:
        write_snapshot(order)
    listener = terminal_protocol.listen(order.terminal, order.uid) if order.terminal else None
    trouble, trouble_in = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(trouble)
        groups = [group] if group is not None else _groups_of_job(order, layers)
        _become(order, groups, trouble_in, listener)
    os.close(trouble_in)
    if listener is not None:
        listener.close()
    return Started(pid, trouble, group, held)


def _groups_of_job(order: Order, layers: Layers) -> list[Group]:
    """Where a command beside a job belongs: into the control groups of that job."""
    return [Group(layers, name).find() for name in order.beside[2:]]


def _become(order: Order, groups: list[Group], trouble: int, listener: socket.socket | None) -> NoReturn:
    """In the child: be the job."""
    code = 126
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        for number in RESET_SIGNALS:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for group in groups:
            group.join()
        if order.uid is not None:
            privileges.become(order.uid, order.user)
        _exec(order, trouble, listener)
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        os.write(trouble, describe(error).encode(errors="replace"))
    except BaseException as error:
        os.write(trouble, repr(error).encode(errors="replace"))
    finally:
        sys.stderr.flush()
        os._exit(code)


def _exec(order: Order, trouble: int, listener: socket.socket | None) -> None:
    environment = environment_of(order)
    logs = open_logs(order)
    argv = command_of(order, environment, logs[0])
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def execute() -> None:
        program = find_program(argv[0], environment.get(b"PATH", DEFAULT_PATH), order.cwd)
        os.chdir(order.cwd)
        os.umask(order.umask)
        set_limits(order.limits)
        if listener is None:
            _take_up((null, *logs))
        os.execve(program, argv, environment)

    if listener is None:
        execute()
    else:
        _take_up((null, *logs))
        _sit_before(order, listener, trouble, execute)


def _take_up(fds: tuple[int, ...]) -> None:
    """Have these as standard input, output and error."""
    for to, fd in enumerate(fds):
        os.dup2(fd, to)


def _sit_before(order: Order, listener: socket.socket, trouble: int, execute: Callable[[], None]) -> NoReturn:
    """Be the one who has the job's terminal; the job is our child."""
    close_others({0, 1, 2, listener.fileno(), trouble})

    def become() -> None:
        try:
            execute()
        except OSError as error:
            said = describe(error).encode(errors="replace")
            os.write(*((2, b"gflow: %b\n" % said) if order.beside else (trouble, said)))
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    is_tty = not order.beside or order.beside[0] == "pty"
    guard = _open_guard(order.beside[1]) if order.beside else None
    code = Terminal(listener, is_tty=is_tty, log=None if order.beside else 1, guard=guard).run(become)
    end_like(code)
    raise AssertionError("we have ended")


def _open_guard(words: str) -> int:
    """A pidfd of the job's process, given by its pid and when it started."""
    pid, started = map(int, words.split())
    pidfd = os.pidfd_open(pid)
    if run_record.start_time(pid) != started:
        raise ProcessLookupError(errno.ESRCH, "the job is over")
    return pidfd


def set_limits(limits: Limits) -> None:
    """The submitter's limits, as far as we are allowed: a limit that cannot be raised stays."""
    for number, soft, hard in limits:
        _, allowed = resource.getrlimit(number)
        most = hard if allowed == resource.RLIM_INFINITY else allowed if hard < 0 else min(hard, allowed)
        wanted = most if soft < 0 else soft if most < 0 else min(soft, most)
        with suppress(OSError, ValueError):
            resource.setrlimit(number, (wanted, most))


# ---------------------------------------------------------------- what a job is made of


def environment_of(order: Order) -> dict[bytes, bytes]:
    """The submitter's variables, and ours, which win."""
    # Output is to be seen when it is printed, not when a buffer is full.
    environment = {b"PYTHONUNBUFFERED": b"1"}
    for entry in (order.environ + b"\0" + order.extra).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if name and equals:
            environment[name] = value
    return environment


def open_logs(order: Order) -> tuple[int, int]:
    """Descriptors for standard output and error: one file in order, or two if that was asked for."""
    out = open_log(order.log)
    error = out if order.error_log == order.log else open_log(order.error_log)
    if order.attempt > 1:
        os.write(out, f"gflow: attempt {order.attempt}\n".encode())
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


def command_of(order: Order, environment: dict[bytes, bytes], log: int) -> list[str]:
    """The argument list; for a script, from its own place if it is still what was submitted.

    A copy is somewhere else; Python still looks for modules where the script was.
    """
    if order.script is None:
        return list(order.command)
    path, text = order.script_path, order.script
    if not path or not _has_content(path, text):
        if path:
            os.write(
                log, f"gflow: {path} changed since it was submitted; running it as it was then\n".encode()
            )
            folders = (os.fsencode(os.path.dirname(path)), environment.get(b"PYTHONPATH", b""))
            environment[b"PYTHONPATH"] = b":".join(filter(None, folders))
        path = order.snapshot
        if order.uid is None:  # of another person's script the shim made one
            write_snapshot(order)
    return [*interpreter(text), path, *order.command]


def write_snapshot(order: Order) -> None:
    """The script as it was submitted, in a folder of ours, readable by its owner alone."""
    with suppress(FileNotFoundError):
        os.unlink(order.snapshot)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(order.snapshot, flags, 0o500), "wb") as file:
        if order.uid is not None:
            privileges.let_read(file.fileno(), order.uid)
        file.write(order.script or b"")


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
