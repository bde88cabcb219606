"""HTTP on a Unix socket: uvicorn's protocol, plus the uid that the kernel vouches for; and on a port."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gflow.daemon.api.fairness import Fairness
from gflow.daemon.listening import Listening
from gflow.daemon.people import peer
from gflow.errors import Refused

BACKLOG = 1024
# How long the head of a request may take to come.
PATIENCE_S = 30.0
# How long somebody who asks for too much has time to read that.
REFUSAL_S = 1.0
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
    _is_refused = False
    _head_bytes = 0
    _who: int | str

    def __init__(self, *args: Any, fairness: Fairness, **more: Any) -> None:
        super().__init__(*args, **more)
        self.fairness = fairness

    def identify(self, transport: Any) -> int | str:
        """Who is at the other end, for counting; tells the routes what they need to know."""
        raise NotImplementedError

    def connection_made(self, transport: Any) -> None:
        self._who = self.identify(transport)
        super().connection_made(transport)
        self._is_refused = not self.fairness.connect(self._who)
        if not self._is_refused:
            self._wait_for_head()
            return
        # Closed at once, the answer would be lost to whoever has already asked.
        transport.write(TOO_MANY)
        transport.write_eof()
        self._patience = self.loop.call_later(REFUSAL_S, transport.close)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
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
        self.fairness.disconnect(self._who)
        super().connection_lost(exc)


class PeerProtocol(Connection):
    """Through the socket: the kernel says who it is."""

    def identify(self, transport: Any) -> int | str:
        pid, uid, groups = peer(transport.get_extra_info("socket"))
        self.app_state = {"uid": uid, "pid": pid, "groups": groups, "origin": f"pid {pid}"}
        return uid


class PortProtocol(Connection):
    """Through the port: nobody yet. See `gate`."""

    def identify(self, transport: Any) -> int | str:
        return str(transport.get_extra_info("peername")[0])


async def serve(listener: socket.socket, app: ASGIApp, fairness: Fairness) -> tuple[asyncio.Server, set[Any]]:
    """Serve `app` on `listener`; the server and its open connections."""
    make, connections = _protocols(PeerProtocol, app, fairness)
    server = await asyncio.get_running_loop().create_unix_server(make, sock=listener, backlog=BACKLOG)
    return server, connections


async def serve_port(
    listening: Listening, app: ASGIApp, fairness: Fairness
) -> tuple[asyncio.Server, set[Any]]:
    """Serve `app`, which must ask for tokens, on a port."""
    make, connections = _protocols(PortProtocol, app, fairness)
    tls = listening.tls()
    try:
        server = await asyncio.get_running_loop().create_server(
            make,
            listening.host,
            listening.port,
            ssl=tls,
            ssl_handshake_timeout=PATIENCE_S if tls else None,
            backlog=BACKLOG,
        )
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise Refused(
            f"port {listening.port} of {listening.host} cannot be had: {why}",
            hint="see daemon.port and daemon.host",
        ) from error
    return server, connections


def _protocols(
    kind: type[Connection], app: ASGIApp, fairness: Fairness
) -> tuple[Callable[[], Connection], set[Any]]:
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
    make = partial(kind, config=config, server_state=state, app_state={}, fairness=fairness)
    return make, state.connections


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
