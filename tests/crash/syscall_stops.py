"""Stops a process at one of its next system calls, as a debugger does: shims have no fault points."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from types import TracebackType

from tests.waiting import wait_until

PTRACE_DETACH, PTRACE_SYSCALL, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 24, 0x4206, 0x4207
PTRACE_GET_SYSCALL_INFO, ENTRY = 0x420E, 1
PTRACE_O_TRACESYSGOOD = 1
SYSCALL_STOP = signal.SIGTRAP | 0x80
WALL = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class TracedProcess:
    """A process that we trace. All methods are called by the thread that made it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        _ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD)
        _ptrace(PTRACE_INTERRUPT, pid)
        self._wait()

    def __enter__(self) -> TracedProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        try:
            _ptrace(PTRACE_DETACH, self.pid)
        except OSError:  # it has ended
            pass

    def run_to_call(self) -> int | None:
        """Run to the beginning of its next system call; the number of the call, None: it has ended."""
        while True:
            _ptrace(PTRACE_SYSCALL, self.pid)
            if not self._wait():
                return None
            info = ctypes.create_string_buffer(88)
            _ptrace(PTRACE_GET_SYSCALL_INFO, self.pid, len(info), ctypes.addressof(info))
            if info.raw[0] == ENTRY:
                return int(struct.unpack_from("Q", info.raw, 24)[0])

    def _wait(self) -> bool:
        """Wait until it stops; False: it has ended. Other signals than our stops are passed on."""
        while True:
            (status,) = wait_until(lambda: _poll(self.pid), 30, f"process {self.pid} to stop")
            if not os.WIFSTOPPED(status):
                return False
            number = os.WSTOPSIG(status)
            if number == SYSCALL_STOP or status >> 16:  # a stop of a tracer
                return True
            _ptrace(PTRACE_SYSCALL, self.pid, 0, number)


def _poll(pid: int) -> tuple[int] | None:
    """The status of a process that has stopped or ended; None: it runs."""
    found, status = os.waitpid(pid, os.WNOHANG | WALL)
    return (status,) if found else None


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    _libc.ptrace.restype = ctypes.c_long
    words = (ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), ctypes.c_void_p(data))
    if _libc.ptrace(*words) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
