"""HTTP on a Unix socket: uvicorn's protocol, plus the uid that the kernel vouches for."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gflow.daemon.api.fairness import Fairness
from gflow.daemon.people import peer
from gflow.errors import Refused

BACKLOG = 1024
# How long the head of a request may take to come.
PATIENCE_S = 30.0
# How long somebody who asks for too much has time to read that.
REFUSAL_S = 1.0
_TEXT = b"you have too many requests open at once\nwait for some of them to end\n"
TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: text/plain; charset=utf-8\r\nx-gflow-exit: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_TEXT), _TEXT)
)


class PeerProtocol(HttpToolsProtocol):
    """One connection, with the identity of its other end in `scope["state"]["uid"]`."""

    _patience: asyncio.TimerHandle | None = None
    _is_refused = False

    def __init__(self, *args: Any, fairness: Fairness, **more: Any) -> None:
        super().__init__(*args, **more)
        self.fairness = fairness

    def connection_made(self, transport: Any) -> None:
        sock = transport.get_extra_info("socket")
        pid, uid, groups = peer(sock)
        self.app_state = {"uid": uid, "pid": pid, "groups": groups}
        super().connection_made(transport)
        self._is_refused = not self.fairness.connect(uid)
        if not self._is_refused:
            self._wait_for_head()
            return
        # Closed at once, the answer would be lost to whoever has already asked.
        transport.write(TOO_MANY)
        transport.write_eof()
        self._patience = self.loop.call_later(REFUSAL_S, transport.close)

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:
            super().data_received(data)

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
        self.fairness.disconnect(self.app_state["uid"])
        super().connection_lost(exc)


async def serve(listener: socket.socket, app: ASGIApp, fairness: Fairness) -> tuple[asyncio.Server, set[Any]]:
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
    make = partial(PeerProtocol, config=config, server_state=state, app_state={}, fairness=fairness)
    server = await asyncio.get_running_loop().create_unix_server(make, sock=listener, backlog=BACKLOG)
    return server, state.connections


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
