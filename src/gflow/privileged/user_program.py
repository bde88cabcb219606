"""A program that the launcher runs as a user for the scheduler, with pipes to the scheduler."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from gflow.privileged.channel import close_all
from gflow.privileged.link import Link, read_answer
from gflow.privileged.messages import RunAs


class RemoteProgram:
    """Has what `pipe_exchange` uses of `subprocess.Popen`."""

    def __init__(self, link: Link, uid: int, name: str, program: str, words: Sequence[str]) -> None:
        self.args = (program, *words)
        self.returncode: int | None = None
        message = RunAs(uid=uid, user=name, program=program, words=tuple(words))  # type: ignore[arg-type]
        ends = [*os.pipe(), *os.pipe(), *os.pipe()]
        theirs, ours = [ends[0], ends[3], ends[5]], [ends[1], ends[2], ends[4]]
        try:
            self._answers = link.begin(message, theirs)
            read_answer(self._answers, bool)
        except BaseException:
            close_all(ours)
            raise
        finally:
            close_all(theirs)
        self.stdin = os.fdopen(ours[0], "wb", buffering=0)
        self.stdout, self.stderr = (os.fdopen(fd, "rb", buffering=0) for fd in ours[1:])

    def __del__(self) -> None:
        if hasattr(self, "_answers"):
            self._answers.close()

    def poll(self) -> int | None:
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def kill(self) -> None:
        with suppress(OSError):
            self._answers.shutdown(socket.SHUT_WR)

    def _read(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], timeout_s)[0]:
            self.returncode = read_answer(self._answers, int)[0]
        return self.returncode
