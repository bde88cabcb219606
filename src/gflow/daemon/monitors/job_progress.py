"""Receives progress reports of jobs: datagrams on a Unix socket, authenticated by SCM_CREDENTIALS.

A job sends a report when its progress changes, at most once a second, and never blocks: a report that does
not fit into the socket's queue is lost. Before its end a job waits up to a second for room, and the daemon
reads all queued reports before it records the end. Otherwise it reads a few datagrams and then pauses, so
that no job can keep the loop busy. In system mode each user has a socket that no other user can write to: the
kernel queues few datagrams, and a flood by one user must not displace the reports of others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from itertools import islice
from math import isfinite
from typing import Literal

import msgspec

from gflow.core.events import Event, Progressed
from gflow.core.ids import JobKey, parse_label
from gflow.core.model import JobProgress, Moment
from gflow.core.state.state import State
from gflow.daemon.settings import Settings
from gflow.metric_names import MOST_METRICS, is_metric_name
from gflow.privileged.port import Privileged, progress_socket

log = logging.getLogger("gflow.progress")
# Bytes of a datagram.
MAX_BYTES = 4096
# Datagrams read at once, and before the end of a job is processed: more than the kernel queues (10, or 512
# with systemd).
AT_ONCE = 32
AT_END = 600
PAUSE_S = 0.05
CREDENTIALS = struct.Struct("3i")
# Larger values are errors, and would not fit a database column.
MAX_VALUE = 1 << 53


class ProgressReport(JobProgress, frozen=True, kw_only=True):
    """One datagram: progress, job and attempt. `at` is ignored; the daemon sets the time.

    `only`: the fields that it reports, if the others and the metrics are to stay as they are.
    """

    job: str
    attempt: int
    at: float = 0.0
    step: int = -1
    only: tuple[Literal["step", "steps", "epoch", "epochs", "loss"], ...] | None = None

    @property
    def is_valid(self) -> bool:
        step = 0 if self.only is not None and "step" not in self.only else self.step
        counts = (step, self.steps, self.epoch, self.epochs)
        measures = (self.samples_per_s, self.left_s or 0.0)
        return all(0 <= count <= MAX_VALUE for count in counts) and all(
            0 <= one < MAX_VALUE for one in measures
        )


_decode = msgspec.json.Decoder(ProgressReport).decode


class ProgressSocket:
    """The sockets. All methods run in the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        state: Callable[[], State],
        post: Callable[[Callable[[Moment], Event]], None],
        privileged: Privileged,
        note: Callable[[JobKey], None] = lambda key: None,
    ) -> None:
        self._settings = settings
        self._state = state
        self._post = post
        self._privileged = privileged
        # Called with the key of each job that reported.
        self._note = note
        self._loop = asyncio.get_running_loop()
        # By uid; a private daemon has one.
        self._socks: dict[int, socket.socket] = {}
        for uid in {job.uid for job in state().running.values()} if settings.is_system else {os.getuid()}:
            self.listen(uid)

    def close(self) -> None:
        for uid, sock in self._socks.items():
            self._loop.remove_reader(sock)
            sock.close()
            self._privileged.remove_progress_socket(uid)

    def listen(self, uid: int) -> None:
        """Open the socket for jobs of this user. An error is logged; jobs run without reports."""
        if not self._settings.is_system:
            uid = os.getuid()
        if uid in self._socks:
            return
        try:
            sock = self._socks[uid] = self._privileged.bind_progress_socket(uid)
        except OSError as error:
            log.error("no progress reports from jobs of user %d: %s", uid, error)
            return
        self._loop.add_reader(sock, self._on_readable, sock)

    def drain(self, uid: int) -> None:
        """Read the pending reports of this user, before the end of one of their jobs is processed."""
        sock = self._socks.get(uid if self._settings.is_system else os.getuid())
        if sock is not None:
            self._read(sock, AT_END)

    def receive(self, lines: list[bytes], uid: int) -> None:
        """Process reports that jobs of this user wrote to files on a cluster."""
        for line in lines[-AT_END:]:
            self._process(line, uid)

    def _on_readable(self, sock: socket.socket) -> None:
        if self._read(sock, AT_ONCE):
            self._loop.remove_reader(sock)
            self._loop.call_later(PAUSE_S, self._resume_reading, sock)

    def _read(self, sock: socket.socket, most: int) -> bool:
        """Read at most `most` datagrams; whether there may be more."""
        for _ in range(most):
            try:
                data, more, flags, _ = sock.recvmsg(MAX_BYTES, socket.CMSG_SPACE(CREDENTIALS.size))
            except BlockingIOError:
                return False
            except OSError as error:
                log.error("progress reports cannot be read: %s", error)
                return True
            if not flags & socket.MSG_TRUNC:
                self._process(data, _sender(more))
        return True

    def _resume_reading(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.add_reader(sock, self._on_readable, sock)

    def _process(self, data: bytes, uid: int | None) -> None:
        """Process a report if it is valid and sent by the job's user; drop any other."""
        try:
            report = _decode(data)
        except msgspec.MsgspecError:
            return
        key = parse_label(report.job)
        job = self._state().jobs.get(key) if key is not None else None
        if (
            job is None
            or not report.is_valid
            or uid != (job.uid if self._settings.is_system else os.getuid())
        ):
            return
        self._post(
            lambda at: Progressed(
                at=at,
                key=job.key,
                attempt=report.attempt,
                progress=_job_progress(report, at),
                only=report.only,
            )
        )
        self._note(job.key)


def _job_progress(report: ProgressReport, at: Moment) -> JobProgress:
    given = {name: getattr(report, name) for name in JobProgress.__struct_fields__}
    nan = tuple(filter(is_metric_name, report.nan[:MOST_METRICS]))
    checked = {
        "at": at.wall,
        "step": max(0, report.step),
        "step_at": 0.0,
        "metrics": _valid_metrics(report.metrics),
        "nan": nan,
    }
    return JobProgress(**given | checked)


def _valid_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """The first `MOST_METRICS` finite values with valid names."""
    valid = ((name, value) for name, value in metrics.items() if is_metric_name(name) and isfinite(value))
    return dict(islice(valid, MOST_METRICS))


def _sender(more: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in more:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(CREDENTIALS.unpack(data[: CREDENTIALS.size])[1])
    return None


def socket_path(settings: Settings, uid: int) -> str:
    """The path of the socket to which jobs of this user send progress reports."""
    return progress_socket(os.path.dirname(settings.socket), uid, is_system=settings.is_system)
