"""Access to files with the rights of another user, in one thread of root's daemon."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)


class Owner(NamedTuple):
    """The account whose rights apply."""

    uid: int
    gid: int


@contextmanager
def acting_as(owner: Owner | None) -> Iterator[None]:
    """Access files as this user, in this thread only; then as before. Needed for homes on NFS too."""
    if owner is None or os.geteuid() != 0:
        yield
        return
    gid = _libc.setfsgid(owner.gid)
    uid = _libc.setfsuid(owner.uid)
    try:
        yield
    finally:
        _libc.setfsuid(uid)
        _libc.setfsgid(gid)
