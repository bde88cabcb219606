"""The protocol of a terminal socket: frames of a type letter, a length and data.

Standard library only: it runs in the shim and in clients.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

# From a client: greeting (size, and whether the job gets a hangup when the client leaves); input; new size;
# end of input; detach.
HELLO, INPUT, SIZE, NO_MORE, BYE = b"h", b"d", b"w", b"q", b"b"
# To a client: output; error output; exit code (negative: signal number).
OUTPUT, ERROR, END = b"o", b"e", b"x"
HEAD = struct.Struct("!cI")
GREETING = struct.Struct("!HHB")
CODE = struct.Struct("!i")
MOST_FRAME = 1 << 20
MOST_CLIENTS = 16


def listen(path: str, uid: int | None) -> socket.socket:
    """Create a listening socket that only this user and root can connect to.

    The directory must belong to the caller, so that no other user can create the name first. The socket gets
    its name when it listens: a client that waits for the name is never refused.
    """
    name = os.path.basename(path)
    new = f"{name}.new"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
    before = os.umask(0o177)
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        # Through /proc/self/fd a path may exceed the 108 bytes of sun_path.
        made.bind(f"/proc/self/fd/{folder}/{new}")
        if uid is not None:
            os.chown(new, uid, -1, dir_fd=folder, follow_symlinks=False)
        made.listen(MOST_CLIENTS)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.umask(before)
        os.close(folder)
    made.setblocking(False)
    return made


def reach(path: str) -> socket.socket:
    """Connect to the terminal at `path`. Raises OSError if there is none, or if it is another user's."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
    try:
        made.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    except OSError:
        made.close()
        raise
    finally:
        os.close(folder)
    return made


def frame(kind: bytes, data: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(data)) + data


def frames(buffer: bytearray) -> list[tuple[bytes, bytes]]:
    """Remove the complete frames from the start of `buffer` and return them. ValueError if malformed."""
    found = []
    while len(buffer) >= HEAD.size:
        kind, size = HEAD.unpack_from(buffer)
        if size > MOST_FRAME:
            raise ValueError("a frame is too large")
        if len(buffer) < HEAD.size + size:
            break
        found.append((kind, bytes(buffer[HEAD.size : HEAD.size + size])))
        del buffer[: HEAD.size + size]
    return found
