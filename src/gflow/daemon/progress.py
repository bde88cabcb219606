"""Hears from jobs how far they are: datagrams at a socket, each checked by who the kernel says sent it.

A job says so when it changes and at most once a second, and never waits: what does not fit is lost. We read a
few at a time, and then not for a moment, so that no job can keep the loop busy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable

import msgspec

from gflow.core.events import Event, Progressed
from gflow.core.ids import parse_label
from gflow.core.model import Headway, Moment
from gflow.core.state import State
from gflow.daemon.settings import Settings

log = logging.getLogger("gflow.progress")
LARGEST = 4096
AT_ONCE = 32
PAUSE_S = 0.05
CREDENTIALS = struct.Struct("3i")
# A figure that is larger is a mistake, and would not fit a column.
MOST = 1 << 53


class Said(Headway, frozen=True, kw_only=True):
    """One datagram: how far a job is, and which one. When that was is not the sender's to say."""

    job: str
    attempt: int
    at: float = 0.0

    @property
    def is_sound(self) -> bool:
        counts = (self.step, self.steps, self.epoch, self.epochs)
        measures = (self.samples_per_s, self.left_s or 0.0)
        return all(0 <= count <= MOST for count in counts) and all(0 <= one < MOST for one in measures)


_decode = msgspec.json.Decoder(Said).decode


class Ear:
    """The socket. Everything happens in the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        state: Callable[[], State],
        post: Callable[[Callable[[Moment], Event]], None],
    ) -> None:
        self._is_system = settings.is_system
        self._state = state
        self._post = post
        self._path = settings.progress
        self._loop = asyncio.get_running_loop()
        self._sock = _bind(settings)
        self._loop.add_reader(self._sock, self._readable)

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._path.unlink(missing_ok=True)

    def _readable(self) -> None:
        for _ in range(AT_ONCE):
            try:
                data, more, flags, _ = self._sock.recvmsg(LARGEST, socket.CMSG_SPACE(CREDENTIALS.size))
            except BlockingIOError:
                return
            except OSError as error:
                log.error("progress of jobs cannot be heard: %s", error)
                return
            if not flags & socket.MSG_TRUNC:
                self._hear(data, _sender(more))
        self._loop.remove_reader(self._sock)
        self._loop.call_later(PAUSE_S, self._listen_again)

    def _listen_again(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock, self._readable)

    def _hear(self, data: bytes, uid: int | None) -> None:
        """Take what is sound and of the job's own person; anything else is nobody's business."""
        try:
            said = _decode(data)
        except msgspec.MsgspecError:
            return
        key = parse_label(said.job)
        job = self._state().jobs.get(key) if key is not None else None
        if job is None or not said.is_sound or uid != (job.uid if self._is_system else os.getuid()):
            return
        self._post(
            lambda at: Progressed(at=at, key=job.key, attempt=said.attempt, headway=_headway(said, at))
        )


def _headway(said: Said, at: Moment) -> Headway:
    return Headway(**{name: getattr(said, name) for name in Headway.__struct_fields__} | {"at": at.wall})


def _sender(more: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in more:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(CREDENTIALS.unpack(data[: CREDENTIALS.size])[1])
    return None


def _bind(settings: Settings) -> socket.socket:
    path = settings.progress
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        # A path of any length fits when it is reached through an open folder.
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
    path.chmod(0o666 if settings.is_system else 0o600)
    return sock
