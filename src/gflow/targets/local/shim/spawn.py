"""Start the process of a job: fork a child that joins control groups, sets limits and executes the job.

A child that fails reports the reason through a pipe, which exec closes on success.
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
from gflow.targets.local.shim import private_tmp, privileges
from gflow.targets.local.shim.terminal import Terminal, close_others, exit_like
from gflow.wire import terminal_protocol

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
RESET_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class StartedJob(NamedTuple):
    """A job's process. `trouble`: a pipe with the reason if the process could not execute the job."""

    pid: int
    trouble: int | None = None
    group: Group | None = None
    # Whether the kernel enforces the memory limit; if not, the shim polls.
    is_limit_held: bool = False


def launch(order: Order, layers: Layers) -> StartedJob:
    """Start the job's process, with its own session, environment, folder, umask and logs."""
    group, is_limit_held = None, False
    needs_group = order.limit_mib or order.cpus or order.max_processes or order.devices
    if needs_group and not order.exec_job:
        group = Group(layers, os.path.basename(order.record))
        is_limit_held = _make_group(group, order)
    if order.uid is not None and order.script is not None:
        write_snapshot(order)
    groups = [group] if group is not None else _groups_of_job(order, layers)
    listener = terminal_protocol.listen(order.terminal, order.uid) if order.terminal else None
    trouble, trouble_in = os.pipe2(os.O_CLOEXEC)
    # A signal for the child waits until it has reset our handlers, which would discard it.
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, RESET_SIGNALS)
    pid = os.fork()
    if pid == 0:
        os.close(trouble)
        _become(order, groups, trouble_in, listener)
    signal.pthread_sigmask(signal.SIG_SETMASK, usual)
    os.close(trouble_in)
    if listener is not None:
        listener.close()
    return StartedJob(pid, trouble, group, is_limit_held)


def _make_group(group: Group, order: Order) -> bool:
    """Make the job's control group; whether the kernel enforces the memory limit."""
    try:
        return group.make(
            order.limit_mib, order.cpus, order.max_processes, order.devices, has_cpu_quota=order.cpu_quota
        )
    except OSError as error:  # a problem of the machine, not of the job
        group.remove()
        raise OSError(errno.EAGAIN, f"its devices cannot be restricted: {error.strerror}") from None


def _groups_of_job(order: Order, layers: Layers) -> list[Group]:
    """The control groups of the job in which a command is executed (`gjob exec`)."""
    groups = [Group(layers, name).find() for name in order.exec_job[2:]]
    if order.exec_job and order.devices and not any(group.is_found for group in groups):
        raise OSError(errno.ESRCH, "the job has ended")
    return groups


def _become(order: Order, groups: list[Group], trouble: int, listener: socket.socket | None) -> NoReturn:
    """In the child: reset signals, join the groups, drop privileges and execute the job."""
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
        _raise_oom_score(order.oom_score)
        if order.private_tmp:
            _enter_private_tmp(order)
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


def _enter_private_tmp(order: Order) -> None:
    """Enter the job's own /tmp and /dev/shm: those of the running job for a command executed in it."""
    if order.exec_job:
        private_tmp.join(*map(int, order.exec_job[1].split()))
    else:
        private_tmp.enter(order.private_tmp)


def _raise_oom_score(score: int) -> None:
    """Let the kernel kill this process before others when memory runs out. Never lowers the score."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < score:
            file.write(str(score))


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
            _set_stdio((null, *logs))
        os.execve(program, argv, environment)

    if listener is None:
        execute()
    else:
        _set_stdio((null, *logs))
        _run_terminal(order, listener, trouble, execute)


def _set_stdio(fds: tuple[int, ...]) -> None:
    """Make these descriptors standard input, output and error."""
    for to, fd in enumerate(fds):
        os.dup2(fd, to)


def _run_terminal(
    order: Order, listener: socket.socket, trouble: int, execute: Callable[[], None]
) -> NoReturn:
    """Serve the job's terminal in this process; the job is our child."""
    close_others({0, 1, 2, listener.fileno(), trouble})

    def become() -> None:
        try:
            execute()
        except OSError as error:
            message = describe(error).encode(errors="replace")
            os.write(*((2, b"gflow: %b\n" % message) if order.exec_job else (trouble, message)))
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    is_tty = not order.exec_job or order.exec_job[0] == "pty"
    guard = _open_guard(order.exec_job[1]) if order.exec_job else None
    code = Terminal(listener, is_tty=is_tty, log=None if order.exec_job else 1, guard=guard).run(become)
    exit_like(code)
    raise AssertionError("exit_like does not return")


def _open_guard(words: str) -> int:
    """A pidfd of the job's process, given by its pid and start time."""
    pid, started = map(int, words.split())
    pidfd = os.pidfd_open(pid)
    if run_record.start_time(pid) != started:
        raise ProcessLookupError(errno.ESRCH, "the job is over")
    return pidfd


def set_limits(limits: Limits) -> None:
    """Set the submitter's resource limits; a limit that we may not raise stays as it is."""
    for number, soft, hard in limits:
        _, allowed = resource.getrlimit(number)
        most = hard if allowed == resource.RLIM_INFINITY else allowed if hard < 0 else min(hard, allowed)
        wanted = most if soft < 0 else soft if most < 0 else min(soft, most)
        with suppress(OSError, ValueError):
            resource.setrlimit(number, (wanted, most))


# ---------------------------------------------------------------- environment, logs and command


def environment_of(order: Order) -> dict[bytes, bytes]:
    """The submitter's variables and gflow's, which take precedence."""
    # Output should appear in the log when it is printed, not when a buffer is full.
    environment = {b"PYTHONUNBUFFERED": b"1"}
    for entry in (order.environ + b"\0" + order.extra).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if name and equals:
            environment[name] = value
    return environment


def open_logs(order: Order) -> tuple[int, int]:
    """Descriptors for standard output and error: the same file, or two if the user asked for two."""
    out = open_log(order.log)
    error = out if order.error_log == order.log else open_log(order.error_log)
    if order.attempt > 1:
        os.write(out, f"gflow: attempt {order.attempt}\n".encode())
    return out, error


def open_log(path: str) -> int:
    """Open a log for appending; creates its folder if needed."""
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
    """The argument list. A script runs from its original path if it has not changed since submission.

    Otherwise a copy runs, and PYTHONPATH lets Python still find modules in the script's folder.
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
        if order.uid is None:  # in system mode the shim has already made the copy
            write_snapshot(order)
    return [*order.wrapper, *interpreter(text), path, *order.command]


def write_snapshot(order: Order) -> None:
    """Write the script as it was submitted to the snapshot path, readable by its owner only."""
    with suppress(FileNotFoundError):
        os.unlink(order.snapshot)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(order.snapshot, flags, 0o500), "wb") as file:
        if order.uid is not None:
            privileges.grant_read(file.fileno(), order.uid)
        file.write(order.script or b"")


def interpreter(script: bytes) -> list[str]:
    """The interpreter of a script: its `#!` line as the kernel parses it, or bash."""
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
    """An error as text: `No such file or directory: /gone`."""
    return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
