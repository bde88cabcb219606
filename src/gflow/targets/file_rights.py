"""Opens files of users with the rights of their owners, in one thread of root's daemon.

In system mode the daemon is root, and the path of a log is the user's choice. A file is opened as that user,
and a log only if it is a regular file of that user: the thread still has root's groups, and a device or a
pipe must not even be opened.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from gflow.errors import Refused

_libc = ctypes.CDLL(None, use_errno=True)
# A link or a pipe in the place of a copy is not opened.
COPY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FileOpener(Protocol):
    """Opens files of one user. Each method returns a descriptor, or raises OSError or Refused."""

    def open_log(self, path: str) -> int:
        """A regular file of the user, for reading."""

    def open_file(self, path: str) -> int:
        """A regular file, for reading."""

    def open_folder(self, path: str) -> int:
        """A folder, to ask about its file system (O_PATH)."""

    def open_copy(self, path: str, *, writes: bool) -> int:
        """The copy of a log, for reading. With `writes` for writing; it is made if it does not exist."""


class Owner(NamedTuple):
    """The account whose rights apply."""

    uid: int
    gid: int


class LocalOpener:
    """Opens files in this process: with the rights of `owner`; None: with our own."""

    def __init__(self, owner: Owner | None = None) -> None:
        self._owner = owner

    def open_log(self, path: str) -> int:
        return self._open_regular(path, of_owner=True)

    def open_file(self, path: str) -> int:
        return self._open_regular(path, of_owner=False)

    def _open_regular(self, path: str, *, of_owner: bool) -> int:
        """Open a file after its type and owner are known: opening a device may have effects."""
        with _acting_as(self._owner):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                found = os.fstat(place)
                if not stat.S_ISREG(found.st_mode):
                    raise Refused(f"the log {path!a:.200} is not a regular file")
                if of_owner and self._owner is not None and found.st_uid != self._owner.uid:
                    raise Refused(f"the log {path!a:.200} belongs to another user")
                return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
            finally:
                os.close(place)

    def open_folder(self, path: str) -> int:
        with _acting_as(self._owner):
            return os.open(path, os.O_PATH | os.O_CLOEXEC)

    def open_copy(self, path: str, *, writes: bool) -> int:
        with _acting_as(self._owner):
            if writes:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, COPY | (os.O_WRONLY | os.O_CREAT if writes else os.O_RDONLY), 0o600)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, f"{path} is not a regular file")
        return fd


# Opens files with the daemon's own rights.
OWN_FILES = LocalOpener()


@contextmanager
def _acting_as(owner: Owner | None) -> Iterator[None]:
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
