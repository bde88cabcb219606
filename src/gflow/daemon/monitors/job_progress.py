"""Hears from jobs how far they are: datagrams at a socket, each checked by who the kernel says sent it.

A job says so when it changes and at most once a second, and never waits: what does not fit is lost. We read a
few at a time, and then not for a moment, so that no job can keep the loop busy. A machine's daemon has a
socket for each user, which no other user can write to: the kernel queues few datagrams, and a flood of one
user's must not take the place of others' reports.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from gflow.core.events import Event, Progressed
from gflow.core.ids import parse_label
from gflow.core.model import JobProgress, Moment
from gflow.core.state.state import State
from gflow.daemon.settings import Settings

log = logging.getLogger("gflow.progress")
LARGEST = 4096
# Datagrams read in one turn of the loop, and before the end of a job.
AT_ONCE = 32
AT_END = 64
PAUSE_S = 0.05
CREDENTIALS = struct.Struct("3i")
# A figure that is larger is a mistake, and would not fit a column.
MOST = 1 << 53


class Said(JobProgress, frozen=True, kw_only=True):
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


class ProgressSocket:
    """The sockets. Everything happens in the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        state: Callable[[], State],
        post: Callable[[Callable[[Moment], Event]], None],
    ) -> None:
        self._settings = settings
        self._state = state
        self._post = post
        self._loop = asyncio.get_running_loop()
        # By user; a daemon of one user has one.
        self._socks: dict[int, socket.socket] = {}
        for uid in {job.uid for job in state().running.values()} if settings.is_system else {os.getuid()}:
            self.listen(uid)

    def close(self) -> None:
        for uid, sock in self._socks.items():
            self._loop.remove_reader(sock)
            sock.close()
            Path(place_of(self._settings, uid)).unlink(missing_ok=True)

    def listen(self, uid: int) -> None:
        """Hear jobs of this user. Where that cannot be, they run all the same."""
        if not self._settings.is_system:
            uid = os.getuid()
        if uid in self._socks:
            return
        try:
            sock = self._socks[uid] = _bind(self._settings, uid)
        except OSError as error:
            log.error("progress of jobs of user %d cannot be heard: %s", uid, error)
            return
        self._loop.add_reader(sock, self._readable, sock)

    def hear_out(self, uid: int) -> None:
        """Read what jobs of this user said before one of them ended."""
        sock = self._socks.get(uid if self._settings.is_system else os.getuid())
        if sock is not None:
            self._read(sock, AT_END)

    def _readable(self, sock: socket.socket) -> None:
        if self._read(sock, AT_ONCE):
            self._loop.remove_reader(sock)
            self._loop.call_later(PAUSE_S, self._listen_again, sock)

    def _read(self, sock: socket.socket, most: int) -> bool:
        """Read so many datagrams; whether there may be more."""
        for _ in range(most):
            try:
                data, more, flags, _ = sock.recvmsg(LARGEST, socket.CMSG_SPACE(CREDENTIALS.size))
            except BlockingIOError:
                return False
            except OSError as error:
                log.error("progress of jobs cannot be heard: %s", error)
                return True
            if not flags & socket.MSG_TRUNC:
                self._hear(data, _sender(more))
        return True

    def _listen_again(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.add_reader(sock, self._readable, sock)

    def _hear(self, data: bytes, uid: int | None) -> None:
        """Take what is sound and of the job's own person; anything else is nobody's business."""
        try:
            said = _decode(data)
        except msgspec.MsgspecError:
            return
        key = parse_label(said.job)
        job = self._state().jobs.get(key) if key is not None else None
        if job is None or not said.is_sound or uid != (job.uid if self._settings.is_system else os.getuid()):
            return
        self._post(
            lambda at: Progressed(at=at, key=job.key, attempt=said.attempt, headway=_headway(said, at))
        )


def _headway(said: Said, at: Moment) -> JobProgress:
    return JobProgress(
        **{name: getattr(said, name) for name in JobProgress.__struct_fields__} | {"at": at.wall}
    )


def _sender(more: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in more:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(CREDENTIALS.unpack(data[: CREDENTIALS.size])[1])
    return None


def place_of(settings: Settings, uid: int) -> str:
    """The socket to which jobs of this user write: how far they are."""
    name = f"progress-{uid}.sock" if settings.is_system else "progress.sock"
    return f"{os.path.dirname(settings.socket)}/{name}"


def _bind(settings: Settings, uid: int) -> socket.socket:
    path = Path(place_of(settings, uid))
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        # A path of any length fits when it is reached through an open folder.
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
    path.chmod(0o600)
    if settings.is_system:
        os.chown(path, uid, -1, follow_symlinks=False)
    return sock
