"""All disk operations of a checkpoint, in one module so that a test can simulate a crash at each of them."""

from __future__ import annotations

import hashlib
import os


class File:
    """A new file that computes its size and checksum while it is written."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._hash = hashlib.sha256()
        self.path = path
        self.size = 0
        # The error that ended writing. PyTorch replaces it by one of its own.
        self.error: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            try:
                done += os.write(self._fd, view[done:])
            except OSError as error:
                self.error = error
                raise
        self._hash.update(view)
        self.size += done
        return done

    def flush(self) -> None:
        """Nothing to do: writes are not buffered."""

    def close(self) -> None:
        """Sync to disk, then close."""
        try:
            os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def drop(self) -> None:
        os.close(self._fd)

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


def make_folder(path: str) -> None:
    os.mkdir(path)


def rename(old: str, new: str) -> None:
    os.rename(old, new)


def link(target: str, path: str) -> None:
    os.symlink(target, path)


def remove(path: str) -> None:
    os.unlink(path)


def remove_folder(path: str) -> None:
    os.rmdir(path)


def sync(path: str) -> None:
    """Sync a file's content, or a directory's entries, to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
