"""Where the database can be: on a disk of this machine. SQLite's log needs memory that all its users
share, and a network file system has none; some also lie about syncs.

What the disk under a folder is like when something cannot be written there, and what to do about it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sqlite3
import stat
import tempfile
from pathlib import Path

from gflow.errors import StoreError
from gflow.store.files import real

NAME = "gflow.db"
LOCAL = Path("/var/tmp")

# As /proc/self/mountinfo calls them.
NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "auristorfs", "coda", "9p",
    "lustre", "lustre_tgt", "gpfs", "mmfs", "beegfs", "fhgfs", "ceph", "glusterfs", "panfs", "pvfs2",
    "orangefs", "wekafs", "gfs2", "ocfs2", "acfs",
    "fuse.sshfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.beegfs", "fuse.juicefs",
    "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.goofys", "fuse.mount-s3", "fuse.mfs", "fuse.moosefs",
    "fuse.lizardfs", "fuse.saunafs", "fuse.seaweedfs", "fuse.davfs", "fuse.davfs2", "fuse.cvmfs",
    "fuse.smbnetfs", "fuse.curlftpfs", "fuse.quobyte", "fuse.afs", "fuse.blobfuse", "fuse.blobfuse2",
})  # fmt: skip
# Gone after a reboot, so no place for what must not get lost.
MEMORY = frozenset({"tmpfs", "ramfs"})


def database_path(data: Path) -> Path:
    """The database of the data folder `data`: in it, or on a local disk if it is on a network.

    A database that is already in the folder stays there. Makes the folder on the local disk.
    """
    here = data / NAME
    if os.path.lexists(here):
        return here
    place = choose(_mountinfo(), str(real(data)))
    if place is None:
        return here
    folder = _own_folder(place.parent, place.name) / place.name
    _make_own(folder)
    return folder / NAME


def choose(mountinfo: str, data: str) -> Path | None:
    """The folder on a local disk for the database of `data`; None: `data` is fine, or there is no better."""
    if kind_of(mountinfo, data) not in NETWORK or kind_of(mountinfo, str(LOCAL)) in NETWORK | MEMORY:
        return None
    name = hashlib.blake2b(os.fsencode(data), digest_size=8).hexdigest()
    return LOCAL / f"gflow-{os.geteuid()}" / name


def kind_of(mountinfo: str, path: str) -> str:
    """The type of the file system that has `path`: that of the innermost mount, of two the later."""
    longest, kind = -1, ""
    for line in mountinfo.splitlines():
        fields, dash, rest = line.partition(" - ")
        words = fields.split(" ")
        if not dash or len(words) < 5:
            continue
        point = _plain(words[4])
        if len(point) >= longest and (path + "/").startswith(point.rstrip("/") + "/"):
            longest, kind = len(point), rest.split(" ")[0]
    return kind


def _plain(text: str) -> str:
    """The kernel writes a space as \\040 and so on."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _mountinfo() -> str:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:  # no /proc: nothing can be known
        return ""


def _own_folder(usual: Path, name: str) -> Path:
    """The folder `usual`, or where another user has taken that name, one beside it with a random suffix.

    Nothing is recorded: only we can make folders that belong to us, so an earlier one is found by its
    owner, and that with the database of `name` in it first.
    """
    ours = [folder for folder in (usual, *sorted(usual.parent.glob(f"{usual.name}.*"))) if _is_ours(folder)]
    ours.sort(key=lambda folder: not os.path.lexists(folder / name / NAME))
    folder = ours[0] if ours else usual
    if not ours and os.path.lexists(usual):
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"{usual.name}.", dir=usual.parent))
        except OSError as error:
            raise StoreError(f"the database cannot be in {usual.parent}: {error.strerror}") from error
    _make_own(folder)
    return folder


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _make_own(folder: Path) -> None:
    """A folder for us alone, in a place where everybody may write."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise StoreError(f"the database cannot be in {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"the database cannot be in {folder}: it is no folder")
    if found.st_uid != os.geteuid():
        raise StoreError(f"the database cannot be in {folder}: it belongs to another user")
    if found.st_mode & 0o077:
        raise StoreError(
            f"the database cannot be in {folder}: others may use it",
            hint=f"chmod 700 {folder} makes it yours",
        )


def first_free_number(data: Path) -> int:
    """One more than any job that left a log or a run record: a number is never given out twice."""
    names = [path.name for folder in ("logs", "run") for path in (data / folder).glob("*")]
    numbers = [name.split(".")[0].split("_")[0] for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1


# SQLite's primary result codes that are about the disk, and not about what is in the file.
_OF_THE_DISK = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN = (*_FULL, errno.EROFS, errno.EIO)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


def is_of_the_disk(error: sqlite3.Error) -> bool:
    """Whether the disk failed; otherwise the database itself is at fault."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_DISK


def is_about_a_disk(error: OSError) -> bool:
    """Whether the disk failed, or the rights to a file on it are missing."""
    return error.errno in _BROKEN or (error.errno in _FORBIDDEN and error.filename is not None)


def unusable_error(folder: Path, error: OSError | sqlite3.Error) -> StoreError:
    """The error for a folder that a daemon cannot work in: why not, and what to do."""
    place = _nearest(folder)
    number = getattr(error, "errno", None)
    disk = _disk_of(place)
    if number in _FULL or (disk is not None and disk.f_blocks and not disk.f_bavail):
        why, hint = "its disk is full", "make room there and start gflowd again; nothing is lost"
    elif number == errno.EROFS or (disk is not None and disk.f_flag & os.ST_RDONLY):
        why, hint = "its file system is read-only", "mount it writable (dmesg may say why it is not)"
    elif not os.access(place, os.W_OK | os.X_OK):
        why = f"{'it' if place == folder else place} may not be written to"
        hint = f"see whose it is: ls -ld {place}"
    else:
        why = str(error)  # of the operating system's, with the file
        hint = "see whose the files there are (ls -l), and whether the disk works (dmesg)"
    return StoreError(f"gflowd cannot work in {folder}: {why}", hint=hint)


def _nearest(folder: Path) -> Path:
    """The folder, or the first above it that is there."""
    return next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))


def _disk_of(place: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(place)
    except OSError:
        return None
