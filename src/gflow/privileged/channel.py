"""Messages between the launcher and the scheduler: packets on an inherited pair of sockets.

A long message travels as a sealed memory file. The receiver knows the process that sent a packet, from the
kernel.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

# The size of a packet; messages that are longer travel as files.
PACKET_BYTES = 32 << 10
MOST_DESCRIPTORS = 8
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
# First byte of a packet: the message follows, or is in the file that comes with it.
INLINE, FILE = b"i", b"f"
_UCRED = struct.Struct("3i")
_ANCILLARY = socket.CMSG_SPACE(_UCRED.size) + socket.CMSG_SPACE(4 * MOST_DESCRIPTORS)


class Packet(NamedTuple):
    """A message, the descriptors that came with it, and its sender."""

    data: bytes
    descriptors: list[int]
    pid: int = 0
    uid: int = -1


def make_pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair. Both ends learn who sends."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for sock in pair:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.setblocking(False)
    return pair


def send(sock: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message. BlockingIOError: not now; OSError: the other end is gone."""
    if len(data) <= PACKET_BYTES:
        _send(sock, (INLINE, data), descriptors)
        return
    file = _memory_file(data)
    try:
        _send(sock, (FILE,), [file, *descriptors])
    finally:
        os.close(file)


def _send(sock: socket.socket, parts: Sequence[bytes], descriptors: Sequence[int]) -> None:
    if descriptors:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        sock.sendmsg(parts, rights)
    else:
        sock.sendmsg(parts)


def receive(sock: socket.socket, most_bytes: int) -> Packet | None:
    """The next message; None: the other end is gone. BlockingIOError: there is none.

    ValueError: it is not a message of at most this size.
    """
    try:
        data, ancillary, flags, _ = sock.recvmsg(PACKET_BYTES + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    descriptors: list[int] = []
    pid, uid = 0, -1
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += array.array("i", content[: len(content) - len(content) % 4])
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid, uid, _ = _UCRED.unpack(content[: _UCRED.size])
    if not data:
        close_all(descriptors)
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("a packet is too long")
        if data[:1] == INLINE:
            return Packet(data[1:], descriptors, pid, uid)
        if data != FILE or not descriptors:
            raise ValueError("a packet has an unknown form")
        text = _read_memory_file(descriptors[0], most_bytes)
        os.close(descriptors.pop(0))
        return Packet(text, descriptors, pid, uid)
    except ValueError:
        close_all(descriptors)
        raise


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _memory_file(data: bytes) -> int:
    """A file in memory that cannot be changed any more."""
    file = os.memfd_create("gflow-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    except OSError:
        os.close(file)
        raise
    return file


def _read_memory_file(file: int, most_bytes: int) -> bytes:
    """The content of a sealed file: reading it does not block, and it cannot change."""
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:
        raise ValueError("a message is in a file that is not in memory") from None
    if seals & SEALS != SEALS:
        raise ValueError("a message is in a file that can be changed")
    size = os.fstat(file).st_size
    if size > most_bytes:
        raise ValueError("the message is too long")
    return os.pread(file, size, 0)
