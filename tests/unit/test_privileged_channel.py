"""Packets between the launcher and the scheduler: what is received, and what is refused."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gflow.errors import Refused
from gflow.privileged import channel, messages
from gflow.privileged.channel import FILE, INLINE, PACKET_BYTES
from gflow.privileged.link import Link, error_of
from gflow.privileged.messages import Failure

MOST = 1 << 20
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = channel.make_pair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [1, PACKET_BYTES, PACKET_BYTES + 1, MOST])
def test_message_arrives_with_its_sender_and_descriptors(pair: Pair, size: int) -> None:
    data = os.urandom(size)
    with open(os.devnull) as file:
        channel.send(pair[0], data, [file.fileno()])
        packet = channel.receive(pair[1], MOST)
        assert packet is not None
        assert (packet.data, packet.pid, packet.uid) == (data, os.getpid(), os.getuid())
        (got,) = packet.descriptors
        assert os.path.sameopenfile(got, file.fileno()) and not os.get_inheritable(got)
        os.close(got)


def test_end_of_the_other_side_is_none_and_nothing_to_read_blocks(pair: Pair) -> None:
    with pytest.raises(BlockingIOError):
        channel.receive(pair[1], MOST)
    pair[0].close()
    assert channel.receive(pair[1], MOST) is None


def _unsealed(folder: Path) -> int:
    file = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(file, b"text")
    return file


def _on_disk(folder: Path) -> int:
    (folder / "file").write_bytes(b"text")
    return os.open(folder / "file", os.O_RDWR)


def _too_long(folder: Path) -> int:
    return channel._memory_file(bytes(MOST + 1))


@pytest.mark.parametrize("make", [_unsealed, _on_disk, _too_long])
def test_file_that_is_not_a_sealed_message_is_refused(pair: Pair, make: object, tmp_path: Path) -> None:
    """The sender could change it while it is read, or make the reader wait for a disk."""
    file = make(tmp_path)  # type: ignore[operator]
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(pair[0], [FILE], [file])
    with pytest.raises(ValueError):
        channel.receive(pair[1], MOST)
    assert len(os.listdir("/proc/self/fd")) == before, "it was closed"
    os.close(file)


@pytest.mark.parametrize("packet", [INLINE + bytes(PACKET_BYTES + 1), FILE, b"x", FILE + b"x"], ids=repr)
def test_packet_of_another_form_is_refused(pair: Pair, packet: bytes) -> None:
    pair[0].send(packet)
    with pytest.raises(ValueError):
        channel.receive(pair[1], MOST)


def test_too_many_descriptors_are_refused_and_closed(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(pair[0], [INLINE], [pair[0].fileno()] * (channel.MOST_DESCRIPTORS + 3))
    with pytest.raises(ValueError):
        channel.receive(pair[1], MOST)
    assert len(os.listdir("/proc/self/fd")) == before


def test_failures_keep_their_kind() -> None:
    error = error_of(Failure(errno=2, text="No such file or directory", path="/x"))
    assert isinstance(error, FileNotFoundError) and error.filename == "/x"
    assert isinstance(error_of(Failure(text="the log belongs to another user")), Refused)


@pytest.mark.parametrize("message", ["order", "call"])
def test_scheduler_without_launcher_ends_instead_of_failing_a_job(pair: Pair, message: str) -> None:
    pid = os.fork()
    if pid == 0:
        pair[0].close()
        try:
            link = Link(pair[1])
            for _ in range(500):
                if message == "order":
                    link.post(messages.EarlierEpoch(epoch=""))
                else:
                    link.call(messages.ShimOf(run="1.1"), int)
                time.sleep(0.01)
        finally:
            os._exit(0)
    pair[1].close()
    pair[0].setblocking(True)
    greeted = channel.receive(pair[0], MOST)
    assert greeted is not None
    with socket.socket(fileno=greeted.descriptors[0]) as answers:
        greeting = messages.Greeting(epoch="", isolation_problem="", lease_folder="", job_files="")
        channel.send(answers, msgspec.msgpack.encode((greeting,)))
    pair[0].close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
