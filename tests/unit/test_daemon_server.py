"""Connections: who is at the other end, and for how long nothing may come."""

import asyncio
import errno
import os
import socket

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gflow.daemon.api import server
from gflow.daemon.api.connections import Connections, bounds_of


async def _who(request):
    return PlainTextResponse(str(request.scope["state"]["uid"]))


async def _talk(path, *sent):
    """What comes back, until the other end closes."""
    reader, writer = await asyncio.open_unix_connection(path)
    for text in sent:
        writer.write(text)
        await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


def talked(tmp_path, *sent):
    async def main():
        listener = server.bind(tmp_path / "s")
        running, _ = server.serve(
            listener, Starlette(routes=[Route("/", _who)]), Connections(bounds_of(1024))
        )
        try:
            return await _talk(str(tmp_path / "s"), *sent)
        finally:
            running.close()

    return asyncio.run(main())


def test_caller_uid_comes_from_the_kernel(tmp_path):
    answer = talked(tmp_path, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.endswith(f"\r\n\r\n{os.getuid()}".encode())


def test_silent_connection_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.05)
    assert talked(tmp_path) == b""


def test_unfinished_request_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.05)
    assert talked(tmp_path, b"GET / HTTP/1.1\r\nX-", b"Slow: ") == b""


def test_unfinished_second_request_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.05)
    answer = talked(tmp_path, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nX-")
    assert answer.count(b"HTTP/1.1 200 OK") == 1


def test_a_request_in_time_is_answered_however_long_that_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.05)

    async def slow(request):
        await asyncio.sleep(0.2)
        return PlainTextResponse("done")

    monkeypatch.setitem(globals(), "_who", slow)
    answer = talked(tmp_path, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"done")


def test_the_socket_is_for_its_owner(tmp_path):
    sock = server.bind(tmp_path / "s")
    assert isinstance(sock, socket.socket)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    sock.close()


class Exhausted(socket.socket):
    """A listening socket whose accept has no descriptor left, for the first few times."""

    failures = 3

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_no_descriptor_at_accept_pauses_and_logs_once(tmp_path, caplog):
    async def main():
        bound = server.bind(tmp_path / "s")
        listener = Exhausted(fileno=bound.detach())
        running, _ = server.serve(
            listener, Starlette(routes=[Route("/", _who)]), Connections(bounds_of(1024))
        )
        try:
            return await _talk(str(tmp_path / "s"), b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        finally:
            running.close()

    assert b"200 OK" in asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "no connections are accepted for now: Too many open files"
    ]
    assert caplog.records[0].exc_info is None


class _Recorder:
    """A transport that keeps what is written."""

    def __init__(self):
        self.written = []

    def write(self, data):
        self.written.append(data)

    def is_closing(self):
        return None in self.written

    def close(self):
        self.written.append(None)


def _written_by(*steps):
    """What a transport has got after these writes (None: a turn of the loop), and one turn later."""

    async def main():
        recorder = _Recorder()
        joined = server.JoinedWrites(recorder)
        for step in steps:
            if step is None:
                await asyncio.sleep(0)
            elif step == "close":
                joined.close()
            else:
                joined.write(step)
        seen = list(recorder.written)
        await asyncio.sleep(0)
        return seen, recorder.written

    return asyncio.run(main())


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def test_the_head_of_an_answer_is_sent_with_its_body():
    assert _written_by(HEAD, b"body", b"more")[0] == [HEAD + b"body", b"more"]
    assert _written_by(HEAD, b"", HEAD, b"next")[0] == [HEAD, HEAD + b"next"]  # HEAD, or 204: no body


def test_a_head_does_not_wait_for_a_body_that_takes_time():
    assert _written_by(HEAD) == ([], [HEAD])
    assert _written_by(HEAD, None, b"body")[0] == [HEAD, b"body"]


def test_a_long_part_of_a_body_is_not_copied():
    long = bytes(server.MOST_JOINED_BYTES + 1)
    assert _written_by(HEAD, long)[0] == [HEAD, long]


def test_a_head_is_sent_before_the_connection_closes():
    assert _written_by(HEAD, "close") == ([HEAD, None], [HEAD, None])
