"""Connections to the port that have sent nothing yet: a descriptor each, and no protocol or TLS state."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gflow.daemon.api.connections import FRESH_S, FRESH_TLS_S, Ticket

# How long the first byte may take to come.
SILENT_S = 10.0
# Connections that are set up in one turn of the loop, and the pause after these: a TLS handshake or an answer
# to a wrong token costs about a millisecond, and a request at the socket takes several turns.
AT_ONCE = 4
REST_S = 0.004
# The first byte of a TLS handshake.
HANDSHAKE = b"\x16"
UNREAD_BYTES = 64 << 10


class Silent:
    """Waits for the first byte of each connection, and then has `start` set it up."""

    def __init__(self, start: Callable[[socket.socket, Ticket], None], *, is_tls: bool) -> None:
        self._start = start
        self._is_tls = is_tls
        self._loop = asyncio.get_running_loop()
        # With the time at which each is closed, in the order of arrival.
        self._waiting: dict[socket.socket, tuple[Ticket, float]] = {}
        self._spoken: deque[tuple[socket.socket, Ticket]] = deque()
        self._is_starting = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sock: socket.socket, ticket: Ticket) -> None:
        sock.setblocking(False)
        self._waiting[sock] = ticket, self._loop.time() + SILENT_S
        self._loop.add_reader(sock, self._read, sock)
        if self._timer is None:
            self._timer = self._loop.call_later(SILENT_S, self._close_late)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for sock in list(self._waiting):
            _close(sock, self._remove(sock))
        while self._spoken:
            _close(*self._spoken.popleft())

    def _remove(self, sock: socket.socket) -> Ticket:
        self._loop.remove_reader(sock)
        return self._waiting.pop(sock)[0]

    def _read(self, sock: socket.socket) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        ticket = self._remove(sock)
        if not first or (self._is_tls and first != HANDSHAKE):
            with suppress(OSError):  # read what has come: closed with unread bytes, the connection is reset
                sock.recv(UNREAD_BYTES)
            _close(sock, ticket)
            return
        self._spoken.append((sock, ticket))
        if not self._is_starting:
            self._is_starting = True
            self._loop.call_soon(self._start_some)

    def _start_some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._spoken))):
            sock, ticket = self._spoken.popleft()
            ticket.refresh(FRESH_TLS_S if self._is_tls else FRESH_S)
            self._start(sock, ticket)
        self._is_starting = bool(self._spoken)
        if self._is_starting:
            self._loop.call_later(REST_S, self._start_some)

    def _close_late(self) -> None:
        """Close those whose time is over; look again when that of the next is."""
        self._timer = None
        for sock, (_, until) in list(self._waiting.items()):
            if until > self._loop.time():
                self._timer = self._loop.call_at(until, self._close_late)
                return
            _close(sock, self._remove(sock))


def _close(sock: socket.socket, ticket: Ticket) -> None:
    sock.close()
    ticket.release()
