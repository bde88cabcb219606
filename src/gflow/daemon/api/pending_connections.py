"""TCP connections that have sent nothing yet. Each costs a descriptor, but no protocol or TLS state."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gflow.daemon.api.connections import FRESH_S, FRESH_TLS_S, Ticket

# Time limit for the first byte.
SILENT_S = 10.0
# Connections that are set up in one turn of the event loop, and the pause after them. A TLS handshake or the
# answer to a wrong token costs about 1 ms, and a request on the Unix socket takes several turns.
AT_ONCE = 4
REST_S = 0.004
# First byte of a TLS handshake record.
HANDSHAKE = b"\x16"
UNREAD_BYTES = 64 << 10


class PendingConnections:
    """Waits for the first byte of each connection, then calls `start` to set it up."""

    def __init__(self, start: Callable[[socket.socket, Ticket], None], *, is_tls: bool) -> None:
        self._start = start
        self._is_tls = is_tls
        self._loop = asyncio.get_running_loop()
        # Connections with their deadlines, in order of arrival.
        self._waiting: dict[socket.socket, tuple[Ticket, float]] = {}
        self._ready: deque[tuple[socket.socket, Ticket]] = deque()
        self._is_starting = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sock: socket.socket, ticket: Ticket) -> None:
        sock.setblocking(False)
        self._waiting[sock] = ticket, self._loop.time() + SILENT_S
        self._loop.add_reader(sock, self._read, sock)
        if self._timer is None:
            self._timer = self._loop.call_later(SILENT_S, self._close_expired)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for sock in list(self._waiting):
            _close(sock, self._remove(sock))
        while self._ready:
            _close(*self._ready.popleft())

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
            with suppress(OSError):  # closing with unread bytes would reset the connection
                sock.recv(UNREAD_BYTES)
            _close(sock, ticket)
            return
        self._ready.append((sock, ticket))
        if not self._is_starting:
            self._is_starting = True
            self._loop.call_soon(self._start_some)

    def _start_some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._ready))):
            sock, ticket = self._ready.popleft()
            ticket.refresh(FRESH_TLS_S if self._is_tls else FRESH_S)
            self._start(sock, ticket)
        self._is_starting = bool(self._ready)
        if self._is_starting:
            self._loop.call_later(REST_S, self._start_some)

    def _close_expired(self) -> None:
        """Close connections past their deadline, and schedule the next check."""
        self._timer = None
        for sock, (_, until) in list(self._waiting.items()):
            if until > self._loop.time():
                self._timer = self._loop.call_at(until, self._close_expired)
                return
            _close(sock, self._remove(sock))


def _close(sock: socket.socket, ticket: Ticket) -> None:
    sock.close()
    ticket.release()
