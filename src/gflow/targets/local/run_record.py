"""The run record: one file per attempt, with its lock, its identity and its end.

The shim creates the file exclusively, so that an attempt starts at most once. It holds an flock on it while
any process of the job lives, and appends lines: its own identity, that of the job's process, in system mode
the job's uid, and the end of the job. A process that gets the lock knows that the shim has ended. A line
counts only if it is complete. A daemon that stops the run appends the reason for the job's log, also if it
has no channel to the shim; the native shim reads it too (`native/main.c`).

A daemon that finds an unlocked record without a first line takes the lock and unlinks it. A shim that gets
there late sees that its file has no name any more, and does nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from gflow.targets.outcome import ShimEnd

# `42.1`, `42_3.1`: a job or task, and its attempt.
RUN_NAME = re.compile(r"[0-9]+(_[0-9]+)?\.[0-9]+")


class Identity(NamedTuple):
    """The identity of a process, distinct from that of a later process with the same pid."""

    boot: str
    namespace: int
    pid: int
    started: int


class Content(NamedTuple):
    """The content of a record so far."""

    shim: Identity | None
    job: Identity | None
    end: ShimEnd | None
    # Description of a process of the job that does not die; empty: none.
    stuck: str = ""
    # Why a daemon stopped the run, for the last line of the log; empty: none did.
    why: str = ""
    # The user of the job in system mode; None: a private daemon's, or that of an earlier version.
    uid: int | None = None


def claim(path: str) -> int | None:
    """Claim an attempt: the locked record. None: already claimed. OSError: no record can be created now."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_APPEND, 0o600)
    except FileExistsError:
        return None
    if try_lock(fd) and os.fstat(fd).st_nlink:
        return fd
    os.close(fd)
    return None


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def list_locked(folder: str) -> dict[str, Content]:
    """Records in this folder whose shims live, by name. Those of commands executed in jobs are left out."""
    living = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if not RUN_NAME.fullmatch(name):
            continue
        with suppress(FileNotFoundError):  # it has just ended
            fd = os.open(f"{folder}/{name}", os.O_RDWR | os.O_CLOEXEC)
            try:
                if not try_lock(fd):
                    living[name] = read(os.pread(fd, 1 << 16, 0))
            finally:
                os.close(fd)
    return living


def write_identity(fd: int, what: str, identity: Identity) -> None:
    os.write(fd, f"{what} {identity.boot} {identity.namespace} {identity.pid} {identity.started}\n".encode())


def write_uid(fd: int, uid: int) -> None:
    """Record as whom the job runs."""
    os.write(fd, f"uid {uid}\n".encode())


def write_stuck(fd: int, text: str) -> None:
    """Record why a job that was killed has not ended yet."""
    os.write(fd, f"stuck {text}\n".encode(errors="replace"))


def append_why(path: str, text: str) -> None:
    """Record why the run is stopped. A record that does not exist is not made: that is its claim."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(fd, f"why {' '.join(text.split())}\n".encode(errors="replace"))
    finally:
        os.close(fd)


def write_end(fd: int, end: ShimEnd) -> None:
    os.write(fd, f"end {' '.join(format_end(end))}\n".encode(errors="replace"))


def format_end(end: ShimEnd) -> tuple[str, ...]:
    """The fields of an end, for the record and the message to the daemon."""
    code = "-" if end.code is None else str(end.code)
    signal = "-" if end.signal is None else str(end.signal)
    return code, signal, str(end.cpu_ms), str(end.peak_kib), end.problem.replace("\n", " ")


def parse_end(words: Sequence[str]) -> ShimEnd:
    """Parse the fields of an end."""
    code, signal, cpu_ms, peak_kib, problem = words
    return ShimEnd(_number(code), _number(signal), problem, int(cpu_ms), int(peak_kib))


def read(text: bytes) -> Content:
    """Parse the complete lines of a record."""
    shim = job = None
    end = None
    stuck = why = ""
    uid = None
    for line in text.split(b"\n")[:-1]:
        word, _, rest = line.decode(errors="replace").partition(" ")
        try:
            if word == "shim":
                shim = _identity(rest)
            elif word == "job":
                job = _identity(rest)
            elif word == "end":
                end = parse_end(rest.split(" ", 4))
            elif word == "stuck":
                stuck = rest
            elif word == "why":
                why = rest
            elif word == "uid":
                uid = int(rest)
        except ValueError:
            continue
    return Content(shim, job, end, stuck, why, uid)


def _identity(text: str) -> Identity:
    boot, namespace, pid, started = text.split(" ")
    return Identity(boot, int(namespace), int(pid), int(started))


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


# ---------------------------------------------------------------- processes


def identity_of(pid: int, like: Identity | None = None) -> Identity | None:
    """The identity of a process; None if it has ended. `like`: an identity of the same boot and namespace."""
    started = start_time(pid)
    if started is None:
        return None
    if like is not None:
        return like._replace(pid=pid, started=started)
    return Identity(boot_id(), namespace_of_pids(), pid, started)


def open_pidfd(identity: Identity | None) -> int | None:
    """A pidfd of exactly this process; None if it has ended.

    The pidfd is opened before the comparison, so that a reused pid is detected.
    """
    if identity is None:
        return None
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError:  # no process has this pid, or a thread has it, or we are out of descriptors
        return None
    if identity_of(identity.pid) == identity:
        return pidfd
    os.close(pidfd)
    return None


def start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of the process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def real_uid(pid: int) -> int | None:
    """The real uid of a process; None if it has ended. Not the owner of its folder, which it can change."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Uid:"))
    return None


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def namespace_of_pids() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
