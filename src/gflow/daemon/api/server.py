"""HTTP on a Unix socket: uvicorn's protocol, plus the uid that the kernel vouches for; and on a port."""

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
from gflow.daemon.api.pending_connections import Silent
from gflow.daemon.auth.users import peer, peer_uid
from gflow.daemon.process.tcp_settings import Listening
from gflow.errors import Refused

log = logging.getLogger("gflow.api")
# Connections that wait to be accepted; how many are taken in one turn of the loop, and how long a turn may be
# spent on closing others: in a flood, a client waits behind all that came before it.
BACKLOG = 4096
AT_ONCE = 64
TURN_S = 0.005
# The same at the port, and how long none are taken there after so many: a request at the socket takes several
# turns, and does not wait for a flood of strangers in each.
PORT_AT_ONCE = 8
PORT_TURN_S = 0.001
PORT_REST_S = 0.004
# How long the head of a request may take to come, and a TLS handshake after its first byte.
PATIENCE_S = 30.0
HANDSHAKE_S = 5.0
# What a connection with TLS reads at once, in place of asyncio's 256 KiB: each keeps a buffer of this size.
TLS_BUFFER_BYTES = 16 << 10
# How long a peer that is refused has time to read that.
REFUSAL_S = 1.0
# Pauses in accepting when there are no descriptors or no memory: the first, the longest; how often to log it.
NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
TELL_AGAIN_S = 60.0
# A head has a path with some names of jobs in it, and a few lines.
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


class Connection(HttpToolsProtocol):
    """One connection, with what is known of its other end in `scope["state"]`."""

    _patience: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def __init__(self, *args: Any, ticket: Ticket, **more: Any) -> None:
        super().__init__(*args, **more)
        self.ticket = ticket

    def connection_made(self, transport: Any) -> None:
        self.app_state["abort"] = transport.abort
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._patience is None:
            return
        self._head_bytes += len(data)  # all of it was head, or nearly
        if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(HEAD_TOO_LARGE)
            self.transport.close()

    def _wait_for_head(self) -> None:
        """A caller that never finishes its request must not keep a descriptor for ever."""
        if self._patience is None:
            self._patience = self.loop.call_later(PATIENCE_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._head_bytes = 0
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._unset_keepalive_if_required()  # a timer that has fired would keep the connection in memory
        self.ticket.release()
        super().connection_lost(exc)


class PeerProtocol(Connection):
    """Through the socket: the kernel says who it is."""

    def connection_made(self, transport: Any) -> None:
        sock = self.ticket.sock
        pid, uid, groups = peer(sock)
        self.app_state = {"uid": uid, "pid": pid, "groups": groups, "origin": f"pid {pid}", "socket": sock}
        super().connection_made(transport)


class PortProtocol(Connection):
    """Through the port: unknown until a token is shown. See `gate`."""

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
    """Tells a peer that it has too many connections, and gives it time to read that.

    Closed at once, the answer would be lost to a peer that has already sent its request.
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
    """Accepts connections on a listening socket, as many as there is room for.

    Not asyncio's own server: that one knows nothing of a connection before its TLS handshake is done, and
    logs a traceback for each that it has no descriptor for.
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
        # Connections that are being set up: with TLS, until the handshake is done.
        self._coming: set[asyncio.Task[None]] = set()
        # Accepted, and waiting until there is room for it.
        self._held: tuple[socket.socket, Any] | None = None
        self._is_resting = False
        self._pause_s = PAUSE_S
        self._told_at = -TELL_AGAIN_S
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self.accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._held is not None:
            self._held[0].close()
        for task in self._coming:
            task.cancel()

    def accept(self) -> None:
        """Take some of those that wait; the others in the loop's next turn."""
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
                self._rest(FRESH_S)
                return
            if ticket is None:
                sock.close()
                continue
            taken += 1
            self._take(sock, ticket)
        if self.rest_s:
            self._rest(self.rest_s)

    def _take(self, sock: socket.socket, ticket: Ticket) -> None:
        task = self._loop.create_task(self._serve(sock, ticket))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _serve(self, sock: socket.socket, ticket: Ticket) -> None:
        make = partial(Refusal if ticket.is_refused else self._make, ticket=ticket)
        try:
            await self._loop.connect_accepted_socket(make, sock, **self._tls)
        except (OSError, asyncio.CancelledError) as error:  # no TLS spoken, not in time, or we close
            ticket.release()  # its transport closes the socket
            # Its frames refer to the TLS state and to themselves: the collector would find them much later.
            traceback.clear_frames(error.__traceback__)

    def _pause(self, error: OSError) -> None:
        """Let those that wait wait, until others have closed something."""
        if self._loop.time() - self._told_at >= TELL_AGAIN_S:
            self._told_at = self._loop.time()
            log.error("no connections are accepted for now: %s", error.strerror)
        self._rest(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _rest(self, for_s: float) -> None:
        self._is_resting = True
        self._loop.remove_reader(self._listener)
        self._loop.call_later(for_s, self._go_on)

    def _go_on(self) -> None:
        self._is_resting = False
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self.accept)
            self.accept()


class PortServer(Server):
    """Accepts connections at the port, after those at the socket, and sets them up when something comes."""

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
        self._silent = Silent(self._start, is_tls=tls is not None)
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
        self._silent.close()

    def _take(self, sock: socket.socket, ticket: Ticket) -> None:
        self._silent.add(sock, ticket)

    def _start(self, sock: socket.socket, ticket: Ticket) -> None:
        if self._tls:
            ticket.on_release = self._trimmer.count
        super()._take(sock, ticket)


def serve(listener: socket.socket, app: ASGIApp, connections: Connections) -> tuple[Server, set[Any]]:
    """Serve `app` on `listener`; the server and its open connections."""
    make, known = _protocols(PeerProtocol, app)

    def admit(sock: socket.socket, address: Any) -> Ticket | None:
        return connections.user(peer_uid(sock), sock)

    return Server(listener, admit, make), known


def serve_port(
    listening: Listening, app: ASGIApp, connections: Connections, first: Server
) -> list[tuple[Server, set[Any]]]:
    """Serve `app`, which must ask for tokens, on a port: at each address that the host's name has here.

    `first`: the server whose connections go first.
    """
    make, known = _protocols(PortProtocol, app)
    tls = listening.tls()

    def admit(sock: socket.socket, address: Any) -> Ticket | None:
        return connections.stranger(address[0], sock)

    return [(PortServer(one, admit, make, tls=tls, first=first), known) for one in _bound(listening)]


def _bound(listening: Listening) -> list[socket.socket]:
    """A bound socket for each address of the host."""
    found: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(
            listening.host or None, listening.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(addresses):
            found.append(socket.create_server(address, family=family, backlog=BACKLOG))
    except OSError as error:
        for sock in found:
            sock.close()
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise Refused(
            f"port {listening.port} of {listening.host} cannot be had: {why}",
            hint="see daemon.port and daemon.host",
        ) from error
    return found


def _protocols(kind: type[Connection], app: ASGIApp) -> tuple[Callable[..., Connection], set[Any]]:
    """What makes connections of this kind, and the set that has those that are open.

    Not uvicorn's own server: that one wakes ten times a second.
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
    """A listening socket at `path` in a folder of our own; for everybody if it is `public`, else 0600.

    It gets its name when it is ready: clients of the daemon before us never see that there is none.
    The data folder's lock is already ours.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_uid != os.getuid():
        raise Refused(f"{path.parent} belongs to somebody else, so no socket can be made there")
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        # A path of any length fits when it is reached through an open folder.
        sock.bind(f"/proc/self/fd/{folder}/{new.name}")
    finally:
        os.close(folder)
    new.chmod(0o666 if public else 0o600)
    sock.listen(BACKLOG)
    new.rename(path)
    return sock
