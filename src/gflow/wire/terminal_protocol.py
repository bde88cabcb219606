"""What goes over the socket of a terminal: frames, each a letter, a length and bytes; and the socket itself.

Standard library only: this runs beside jobs, and in clients.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

# From a client: its size and whether the job is hung up when it goes; input; its size; no more input; bye.
HELLO, INPUT, SIZE, NO_MORE, BYE = b"h", b"d", b"w", b"q", b"b"
# To a client: output; error output; the end, as a code (negative: a signal).
OUTPUT, ERROR, END = b"o", b"e", b"x"
HEAD = struct.Struct("!cI")
GREETING = struct.Struct("!HHB")
CODE = struct.Struct("!i")
MOST_FRAME = 1 << 20
MOST_CLIENTS = 16


def listen(path: str, uid: int | None) -> socket.socket:
    """A socket that only this person (and root) can reach. The folder is ours: nobody is there before us.

    It gets its name when it is ready: a client that waits for the name is never refused.
    """
    name = os.path.basename(path)
    new = f"{name}.new"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
    before = os.umask(0o177)
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        # A path of any length fits when it is reached through an open folder.
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
    """A connection to the terminal at `path`. OSError: there is none, or it is somebody else's."""
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
    """The whole frames at the beginning of `buffer`, which loses them. ValueError: this is something else."""
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
