"""HTTP on a Unix socket: uvicorn's protocol, plus the uid that the kernel vouches for."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gflow.errors import Refused
from gflow.options.paths import SOCKET_PATH_MAX

_UCRED = struct.Struct("3i")
BACKLOG = 1024
# How long the head of a request may take to come.
PATIENCE_S = 30.0


class PeerProtocol(HttpToolsProtocol):
    """One connection, with the identity of its other end in `scope["state"]["uid"]`."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        sock = transport.get_extra_info("socket")
        pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        self.app_state = {"uid": uid, "pid": pid}
        super().connection_made(transport)
        self._wait_for_head()

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
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)


async def serve(listener: socket.socket, app: ASGIApp) -> tuple[asyncio.Server, set[Any]]:
    """Serve `app` on `listener`; the server and its open connections.

    Not uvicorn's own server: that one wakes ten times a second.
    """
    config = uvicorn.Config(
        app,
        http=PeerProtocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
        proxy_headers=False,
    )
    config.load()
    state = ServerState()
    make = partial(PeerProtocol, config=config, server_state=state, app_state={})
    server = await asyncio.get_running_loop().create_unix_server(make, sock=listener, backlog=BACKLOG)
    return server, state.connections


def bind(path: Path) -> socket.socket:
    """A listening socket at `path`, 0600, in a folder of our own. The data folder's lock is already ours."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_uid != os.getuid():
        raise Refused(f"{path.parent} belongs to somebody else, so no socket can be made there")
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        # A path of any length fits when it is reached through an open folder.
        name = str(path) if len(str(path)) <= SOCKET_PATH_MAX else f"/proc/self/fd/{folder}/{path.name}"
        sock.bind(name)
    finally:
        os.close(folder)
    path.chmod(0o600)
    sock.listen(BACKLOG)
    return sock
