"""People, by the machine's own list of them; never by what a caller says."""

from __future__ import annotations

import grp
import pwd
import socket
import struct
import time
from functools import lru_cache

# What the kernel tells about the other end of a socket: pid, uid, gid; and its further groups.
_UCRED = struct.Struct("3i")
SO_PEERGROUPS = 59
GROUPS_BYTES = 1024
# How long the number of a group's name is believed.
KNOWN_S = 60.0

_known_groups: dict[str, tuple[float, int | None]] = {}


def peer(sock: socket.socket) -> tuple[int, int, frozenset[int]]:
    """Pid, uid and groups of a socket's other end, by the kernel's word."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    try:
        more = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES)
    except OSError:  # an old kernel, or more groups than fit: those that cannot be told give no rights
        more = b""
    return pid, uid, frozenset({gid, *struct.unpack(f"{len(more) // 4}I", more)})


def peer_uid(sock: socket.socket) -> int:
    """The uid of a socket's other end, by the kernel's word."""
    uid: int = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
    return uid


def is_member(group: str, groups: frozenset[int]) -> bool:
    """Whether the group of this name is among these."""
    now = time.monotonic()
    looked_at, gid = _known_groups.get(group, (-KNOWN_S, None))
    if now - looked_at >= KNOWN_S or gid is None:
        try:
            gid = grp.getgrnam(group).gr_gid
        except KeyError:
            gid = None
        _known_groups[group] = now, gid
    return gid is not None and gid in groups


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@lru_cache(maxsize=1024)
def home_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/nonexistent"
