"""HTTP servers on the Unix socket and on TCP: uvicorn's protocol with peer credentials and admission."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import traceback
from asyncio import sslproto
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gflow.daemon.api.connections import FRESH_S, Connections, NoRoomYet, Ticket
from gflow.daemon.api.heap_trim import Trimmer
from gflow.daemon.api.pending_connections import PendingConnections
from gflow.daemon.auth.users import peer, peer_uid
from gflow.daemon.process.tcp_settings import ListenSettings
from gflow.errors import Refused

log = logging.getLogger("gflow.api")
# A listening socket at a port for each address of a host; OSError: none.
BindPort = Callable[[str, int], list[socket.socket]]
# Listen backlog; connections accepted in one turn of the event loop; and the longest such turn, since closing
# refused connections takes time too. In a flood, a client waits behind all connections before it.
BACKLOG = 4096
AT_ONCE = 64
TURN_S = 0.005
# The same for TCP, and the pause after each turn. A request on the Unix socket takes several turns, and must
# not wait for a flood of TCP connections in each.
PORT_AT_ONCE = 8
PORT_TURN_S = 0.001
PORT_REST_S = 0.004
# Time limits for the head of a request, and for a TLS handshake after its first byte.
HEAD_TIMEOUT_S = 30.0
HANDSHAKE_S = 5.0
# Read buffer of each TLS connection, instead of asyncio's 256 KiB.
TLS_BUFFER_BYTES = 16 << 10
# Time for a peer to read its refusal.
REFUSAL_S = 1.0
# Errors of accept() that mean missing descriptors or memory; first and longest pause after one; log interval.
NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
LOG_INTERVAL_S = 60.0
# Largest request head: a path with job selectors and a few headers.
MOST_HEAD_BYTES = 256 << 10
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nx-gflow-exit: 2\r\nconnection: close\r\n"
    b"content-length: 0\r\n\r\n"
)
_TEXT = b"you have too many requests open at once\nwait for some of them to end\n"
TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: text/plain; charset=utf-8\r\nx-gflow-exit: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_TEXT), _TEXT)
)
# The longest part of an answer that is copied behind its head.
MOST_JOINED_BYTES = 64 << 10


class JoinedWrites:
    """A transport that sends the head of an answer together with the first part of its body.

    uvicorn writes them one after the other, and the first write wakes a client that needs both.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._head and data.startswith(b"HTTP/1.1 "):
            self._head = data
            asyncio.get_running_loop().call_soon(self._flush)  # a body that takes longer does not delay it
        elif len(data) <= MOST_JOINED_BYTES:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self._flush()
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class Connection(HttpToolsProtocol):
    """One connection. The identity of its peer is in `scope["state"]`."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def __init__(self, *args: Any, ticket: Ticket, **more: Any) -> None:
        super().__init__(*args, **more)
        self.ticket = ticket

    def connection_made(self, transport: Any) -> None:
        self.app_state["abort"] = transport.abort
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is None:
            return
        self._head_bytes += len(data)  # approximate: may include the start of a body
        if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(HEAD_TOO_LARGE)
            self.transport.close()

    def _wait_for_head(self) -> None:
        """Start the timeout of the request head, so that a stalled client does not keep a descriptor."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._head_bytes = 0
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._unset_keepalive_if_required()  # its timer would keep the connection in memory
        self.ticket.release()
        super().connection_lost(exc)


class PeerProtocol(Connection):
    """A connection on the Unix socket. The kernel reports the peer's credentials."""

    def connection_made(self, transport: Any) -> None:
        sock = self.ticket.sock
        pid, uid, groups = peer(sock)
        self.app_state = {"uid": uid, "pid": pid, "groups": groups, "origin": f"pid {pid}", "socket": sock}
        super().connection_made(transport)


class PortProtocol(Connection):
    """A TCP connection. Its peer is unknown until it shows a token (see `tcp_gate`)."""

    def connection_made(self, transport: Any) -> None:
        self.app_state = {"ticket": self.ticket}
        super().connection_made(transport)

    def on_headers_complete(self) -> None:
        self.ticket.is_busy = True
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.ticket.is_busy = bool(self.pipeline)
        super().on_response_complete()


class Refusal(asyncio.Protocol):
    """Answers 429 to a peer with too many connections, and closes after `REFUSAL_S`.

    If it closed at once, a peer that has already sent its request would lose the answer to a reset.
    """

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def connection_made(self, transport: Any) -> None:
        transport.write(TOO_MANY)
        transport.write_eof()
        self._close = asyncio.get_running_loop().call_later(REFUSAL_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close.cancel()
        self._ticket.release()


class Server:
    """Accepts connections on a listening socket and admits them.

    Replaces asyncio's server, which reports a connection only after its TLS handshake, and logs a traceback
    for each that it has no descriptor for.
    """

    at_once, turn_s, rest_s = AT_ONCE, TURN_S, 0.0

    def __init__(
        self,
        listener: socket.socket,
        admit: Callable[[socket.socket, Any], Ticket | None],
        make: Callable[..., Connection],
    ) -> None:
        self._listener = listener
        self._admit = admit
        self._make = make
        self._tls: dict[str, Any] = {}
        self._loop = asyncio.get_running_loop()
        # TLS handshakes.
        self._starting: set[asyncio.Task[None]] = set()
        # Accepted, but waiting for `NoRoomYet` to pass.
        self._held: tuple[socket.socket, Any] | None = None
        self._is_resting = False
        self._pause_s = PAUSE_S
        self._logged_at = -LOG_INTERVAL_S
        listener.setblocking(False)
        if listener.family != socket.AF_UNIX:  # `bind` has; and who listens is whom clients take us for
            listener.listen(BACKLOG)
        self._loop.add_reader(listener, self.accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._held is not None:
            self._held[0].close()
        for task in self._starting:
            task.cancel()

    def accept(self) -> None:
        """Accept some connections; the rest follow in the next turn of the event loop."""
        if self._is_resting:
            return
        taken, until = 0, self._loop.time() + self.turn_s
        while taken < self.at_once and self._loop.time() < until:
            try:
                sock, address = self._held or self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in NO_RESOURCES:
                    raise
                self._pause(error)
                return
            self._pause_s, self._held = PAUSE_S, None
            try:
                ticket = self._admit(sock, address)
            except NoRoomYet:
                self._held = sock, address
                self._rest_for(FRESH_S)
                return
            if ticket is None:
                sock.close()
                continue
            taken += 1
            self._take(sock, ticket)
        if self.rest_s:
            self._rest_for(self.rest_s)

    def _take(self, sock: socket.socket, ticket: Ticket) -> None:
        make = partial(Refusal if ticket.is_refused else self._make, ticket=ticket)
        if not self._tls:
            # As asyncio's own servers do: `connect_accepted_socket` would need a task for each connection.
            sock.setblocking(False)
            self._loop._make_socket_transport(sock, make())  # type: ignore[attr-defined]
            return
        task = self._loop.create_task(self._shake_hands(sock, ticket, make))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _shake_hands(
        self, sock: socket.socket, ticket: Ticket, make: Callable[[], asyncio.Protocol]
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(make, sock, **self._tls)
        except (OSError, asyncio.CancelledError) as error:  # not TLS, handshake timeout, or server closing
            ticket.release()  # its transport closes the socket
            # Break the reference cycle of the frames with the TLS state: the collector would run much later.
            traceback.clear_frames(error.__traceback__)

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a while, with exponential backoff, until descriptors or memory are freed."""
        if self._loop.time() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = self._loop.time()
            log.error("no connections are accepted for now: %s", error.strerror)
        self._rest_for(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _rest_for(self, for_s: float) -> None:
        self._is_resting = True
        self._loop.remove_reader(self._listener)
        self._loop.call_later(for_s, self._resume)

    def _resume(self) -> None:
        self._is_resting = False
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self.accept)
            self.accept()


class PortServer(Server):
    """Accepts TCP connections, after those of the Unix socket. Sets each up when its first byte arrives."""

    at_once, turn_s, rest_s = PORT_AT_ONCE, PORT_TURN_S, PORT_REST_S

    def __init__(
        self,
        listener: socket.socket,
        admit: Callable[[socket.socket, Any], Ticket | None],
        make: Callable[..., Connection],
        *,
        tls: ssl.SSLContext | None,
        first: Server,
    ) -> None:
        super().__init__(listener, admit, make)
        self._first = first
        self._pending = PendingConnections(self._start, is_tls=tls is not None)
        self._trimmer = Trimmer()
        if tls is not None:
            sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
            self._tls = {
                "ssl": tls,
                "ssl_handshake_timeout": HANDSHAKE_S,
                "ssl_shutdown_timeout": REFUSAL_S,
            }

    def accept(self) -> None:
        self._first.accept()
        super().accept()

    def close(self) -> None:
        super().close()
        self._pending.close()

    def _take(self, sock: socket.socket, ticket: Ticket) -> None:
        self._pending.add(sock, ticket)

    def _start(self, sock: socket.socket, ticket: Ticket) -> None:
        if self._tls:
            ticket.on_release = self._trimmer.count
        super()._take(sock, ticket)


def serve(listener: socket.socket, app: ASGIApp, connections: Connections) -> tuple[Server, set[Any]]:
    """Serve `app` on `listener`. Returns the server and the set of its open connections."""
    make, known = _protocol_factory(PeerProtocol, app)

    def admit(sock: socket.socket, address: Any) -> Ticket | None:
        return connections.admit_user(peer_uid(sock), sock)

    return Server(listener, admit, make), known


def serve_port(
    listening: ListenSettings, app: ASGIApp, connections: Connections, first: Server, bind_port: BindPort
) -> list[tuple[Server, set[Any]]]:
    """Serve `app`, which must authenticate, on TCP: at each local address of the host name.

    `first`: the server that accepts before these do. `bind_port` makes the sockets.
    """
    make, known = _protocol_factory(PortProtocol, app)
    tls = listening.tls()

    def admit(sock: socket.socket, address: Any) -> Ticket | None:
        return connections.admit_stranger(address[0], sock)

    return [
        (PortServer(one, admit, make, tls=tls, first=first), known) for one in _bind_all(listening, bind_port)
    ]


def _bind_all(listening: ListenSettings, bind_port: BindPort) -> list[socket.socket]:
    """A bound socket for each address of the host."""
    try:
        return bind_port(listening.host, listening.port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise Refused(
            f"port {listening.port} of {listening.host} cannot be used: {why}",
            hint="see daemon.port and daemon.host",
        ) from error


def _protocol_factory(kind: type[Connection], app: ASGIApp) -> tuple[Callable[..., Connection], set[Any]]:
    """A factory of connections of this kind, and the set of open ones.

    Replaces uvicorn's server, which wakes up ten times a second.
    """
    config = uvicorn.Config(
        app,
        http=kind,
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
        proxy_headers=False,
    )
    config.load()
    state = ServerState()
    return partial(kind, config=config, server_state=state, app_state={}), state.connections


def bind(path: Path, *, public: bool = False) -> socket.socket:
    """Create a listening Unix socket at `path`, mode 0666 if `public`, else 0600.

    The socket is renamed to `path` when it listens, so that a client never finds the path missing during a
    restart. The caller holds the lock of the data directory.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_uid != os.getuid():
        raise Refused(f"{path.parent} belongs to another user, so no socket can be made there")
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        # Through /proc/self/fd a path may exceed the 108 bytes of sun_path.
        sock.bind(f"/proc/self/fd/{folder}/{new.name}")
    finally:
        os.close(folder)
    new.chmod(0o666 if public else 0o600)
    sock.listen(BACKLOG)
    new.rename(path)
    return sock
