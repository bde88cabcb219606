"""Connections to the port: what strangers cost, and who is served in the midst of many of them."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gflow.daemon.api import connections as counting
from gflow.daemon.api import heap_trim, pending_connections, server
from gflow.daemon.api.connections import Bounds, Connections, Ticket
from gflow.daemon.process.tcp_settings import ListenSettings
from gflow.privileged.in_process import InProcess
from tests.harness import free_port
from tests.process.test_overload import certificate

BOUNDS = Bounds(total=400, shared=400, of_user=400, strangers=8, of_network=4, scarce_from=4000)
ROOMY = BOUNDS._replace(strangers=300, of_network=300)
ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Counted(Connections):
    """Remembers where each admitted connection came from, in the order of their accept."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.came: list[str] = []

    def admit_user(self, uid: int, sock: socket.socket) -> Ticket | None:
        self.came.append("socket")
        return super().admit_user(uid, sock)

    def admit_stranger(self, address: str, sock: socket.socket) -> Ticket | None:
        ticket = super().admit_stranger(address, sock)
        self.came.append("port")
        return ticket


PORTS = InProcess(Path("/nonexistent"), Path("/nonexistent"), is_system=False)


class Port:
    """A server on a port and a socket whose requests end when `answered` is set."""

    def __init__(self, folder: Path, bounds: Bounds, *, tls: bool = False) -> None:
        self.number, self.path = free_port(), folder / "s"
        self.known, self.answered = Counted(bounds), asyncio.Event()
        self.asked = 0
        self.certificate, key = certificate(folder) if tls else ("", "")
        listening = ListenSettings(port=self.number, certificate=str(self.certificate), key=str(key))
        app = Starlette(routes=[Route("/", self._answer)])
        first, _ = server.serve(server.bind(self.path), app, self.known)
        self.servers = [
            first,
            *(one for one, _ in server.serve_port(listening, app, self.known, first, PORTS.bind_port)),
        ]
        self._socks: list[socket.socket] = []

    async def _answer(self, request: Request) -> Response:
        self.asked += 1
        await self.answered.wait()
        return PlainTextResponse("done")

    def connect(self, data: bytes = b"") -> socket.socket:
        """Connect while the server does nothing: the loop does not run meanwhile."""
        sock = socket.create_connection(("127.0.0.1", self.number), timeout=20)
        self._socks.append(sock)
        sock.sendall(data)
        sock.setblocking(False)
        return sock

    def connect_unix(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.path))
        self._socks.append(sock)

    def close(self) -> None:
        for one in self.servers:
            one.close()
        for sock in self._socks:
            sock.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def received(sock: socket.socket) -> bytes:
    """All that comes until the other end closes; nothing if it was reset."""
    found = b""
    async with asyncio.timeout(20):
        try:
            while more := await asyncio.get_running_loop().sock_recv(sock, 65_536):
                found += more
        except ConnectionError:
            pass
    return found


def on_port(
    folder: Path, bounds: Bounds, do: Callable[[Port], Awaitable[None]], *, tls: bool = False
) -> None:
    async def main() -> None:
        port = Port(folder, bounds, tls=tls)
        try:
            await do(port)
        finally:
            port.close()
            await asyncio.sleep(0)

    asyncio.run(main())


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def tls_states() -> int:
    return sum(isinstance(one, sslproto.SSLProtocol) for one in gc.get_objects())


def hello_of(cert: object) -> bytes:
    """What a client sends first."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(cert)).wrap_bio(
        ssl.MemoryBIO(), sent, server_hostname="localhost"
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def test_request_that_came_before_a_flood_is_answered(tmp_path: Path) -> None:
    async def do(port: Port) -> None:
        port.answered.set()
        asking = [port.connect(ASK) for _ in range(3)]
        flood = [port.connect() for _ in range(60)]
        for sock in asking:
            assert (await received(sock)).endswith(b"done")
        await until(lambda: len(port.known.came) == len(asking) + len(flood))

    on_port(tmp_path, BOUNDS, do)


def test_request_in_progress_is_not_evicted_by_a_flood(tmp_path: Path) -> None:
    async def do(port: Port) -> None:
        asking = port.connect(ASK)
        await until(lambda: port.asked)
        flood = [port.connect() for _ in range(60)]
        await until(lambda: len(port.known.came) == len(flood) + 1)
        port.answered.set()
        assert (await received(asking)).endswith(b"done")

    on_port(tmp_path, BOUNDS, do)


def test_socket_is_accepted_before_port(tmp_path: Path) -> None:
    async def do(port: Port) -> None:
        for _ in range(60):
            port.connect()
        for _ in range(20):
            port.connect_unix()
        await until(lambda: len(port.known.came) == 80)
        last = max(number for number, where in enumerate(port.known.came) if where == "socket")
        assert port.known.came[:last].count("port") <= server.PORT_AT_ONCE

    on_port(tmp_path, ROOMY, do)


def test_silent_connection_has_no_tls_state(tmp_path: Path, no_collector: None) -> None:
    async def do(port: Port) -> None:
        for _ in range(60):
            port.connect()
        await until(lambda: len(port.known.came) == 60)
        assert tls_states() == 0

    on_port(tmp_path, ROOMY, do, tls=True)


def test_tls_state_goes_when_its_connection_ends(tmp_path: Path, no_collector: None) -> None:
    async def do(port: Port) -> None:
        hello = hello_of(port.certificate)
        socks = [port.connect(hello) for _ in range(20)]
        await until(lambda: tls_states() == 20)
        for sock in socks:
            sock.close()
        await until(lambda: tls_states() == 0)

    on_port(tmp_path, ROOMY, do, tls=True)


def asked_with_tls(port: Port) -> ssl.SSLSocket:
    """A connection that has its answer and reads no more."""
    context = ssl.create_default_context(cafile=str(port.certificate))
    sock = socket.create_connection(("127.0.0.1", port.number), timeout=20)
    client = context.wrap_socket(sock, server_hostname="localhost")
    client.sendall(ASK.replace(b"Connection: close\r\n", b""))
    assert client.recv(65_536).startswith(b"HTTP/1.1 200")
    return client


def test_tls_state_goes_after_a_keep_alive_timeout(
    tmp_path: Path, no_collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REFUSAL_S", 0.05)
    made = server.uvicorn.Config
    monkeypatch.setattr(
        server.uvicorn, "Config", lambda *args, **more: made(*args, **more, timeout_keep_alive=0)
    )

    async def do(port: Port) -> None:
        port.answered.set()
        client = await asyncio.to_thread(asked_with_tls, port)
        await until(lambda: tls_states() == 0)  # the client never answers the end of TLS
        client.close()

    on_port(tmp_path, ROOMY, do, tls=True)


def test_non_tls_connection_is_closed_at_once(tmp_path: Path, no_collector: None) -> None:
    async def do(port: Port) -> None:
        assert await received(port.connect(ASK)) == b""
        assert tls_states() == 0

    on_port(tmp_path, ROOMY, do, tls=True)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_connection_that_stays_silent_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setattr(pending_connections, "SILENT_S", 0.1)

    async def do(port: Port) -> None:
        socks = [port.connect() for _ in range(20)]
        for sock in socks:
            assert await received(sock) == b""
        assert port.known._open == 0

    on_port(tmp_path, ROOMY, do, tls=tls)


def test_newcomer_is_accepted_when_others_are_no_longer_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "FRESH_S", 0.3)

    async def do(port: Port) -> None:
        port.answered.set()
        for _ in range(BOUNDS.of_network):
            port.connect()
        assert (await received(port.connect(ASK))).endswith(b"done")

    on_port(tmp_path, BOUNDS, do)


def test_memory_is_given_back_after_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        trimmed = 0

        def malloc_trim(self, pad: int) -> None:
            self.trimmed += 1

    libc = Libc()
    monkeypatch.setattr(heap_trim, "_libc", libc)
    monkeypatch.setattr(heap_trim, "DELAY_S", 0.01)

    async def main() -> None:
        trimmer = heap_trim.Trimmer()
        for _ in range(heap_trim.AFTER - 1):
            trimmer.count()
        await asyncio.sleep(0.05)
        assert libc.trimmed == 0
        for _ in range(2 * heap_trim.AFTER):
            trimmer.count()
        await until(lambda: libc.trimmed)
        assert libc.trimmed == 1

    asyncio.run(main())
