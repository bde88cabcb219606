"""Choice of the folder for the database: on a local disk. SQLite's log needs memory that all its processes
share, which a network file system does not have; some also report syncs that did not happen.

Also: errors for a folder that cannot be written, with the state of its disk and a hint.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Container
from pathlib import Path

from gflow.errors import StoreError
from gflow.store.files import real

NAME = "gflow.db"
LOCAL = Path("/var/tmp")
# Rights that others may not have to a folder: none at all, or none but to pass to what is in it.
CLOSED, PASSED = 0o077, 0o066

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
# Contents are lost at a reboot, so the database cannot be here.
MEMORY = frozenset({"tmpfs", "ramfs"})


def database_path(data: Path, scheduler: int | None = None) -> Path:
    """The database of the data folder `data`: in that folder, or on a local disk if that is on a network.

    An existing database in the folder is used. Creates the folder on the local disk. `scheduler`: in system
    mode the user of the scheduler, whose the innermost folder becomes (`daemon.process.directories`).
    """
    here = data / NAME
    if os.path.lexists(here):
        return here
    place = choose(_mountinfo(), str(real(data)))
    if place is None:
        return here
    others = CLOSED if scheduler is None else PASSED
    folder = _own_folder(place.parent, place.name, others) / place.name
    _make_own(folder, CLOSED, {os.geteuid(), scheduler})
    return folder / NAME


def choose(mountinfo: str, data: str) -> Path | None:
    """The folder on a local disk for the database of `data`; None: `data` is local, or no disk is."""
    if kind_of(mountinfo, data) not in NETWORK or kind_of(mountinfo, str(LOCAL)) in NETWORK | MEMORY:
        return None
    name = hashlib.blake2b(os.fsencode(data), digest_size=8).hexdigest()
    return LOCAL / f"gflow-{os.geteuid()}" / name


def kind_of(mountinfo: str, path: str) -> str:
    """The type of the file system of `path`: of the innermost mount and, of equal ones, the latest."""
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
    """Undo the kernel's octal escapes: a space is \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _mountinfo() -> str:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:  # no /proc: the mounts are unknown
        return ""


def _own_folder(usual: Path, name: str, refused: int) -> Path:
    """The folder `usual` or, if another user has taken that name, a sibling with a random suffix.

    No record is needed: only we can create folders that belong to us, so an earlier one is found by its
    owner. One that contains the database `name` is preferred.
    """
    ours = [folder for folder in (usual, *sorted(usual.parent.glob(f"{usual.name}.*"))) if _is_ours(folder)]
    ours.sort(key=lambda folder: not os.path.lexists(folder / name / NAME))
    folder = ours[0] if ours else usual
    if not ours and os.path.lexists(usual):
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"{usual.name}.", dir=usual.parent))
        except OSError as error:
            raise StoreError(f"the database cannot be in {usual.parent}: {error.strerror}") from error
    _make_own(folder, refused, {os.geteuid()})
    return folder


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _make_own(folder: Path, refused: int, owners: Container[int | None]) -> None:
    """Create a folder for our user only, in one that all users may write, or refuse one that is not of these
    owners alone. `refused`: rights that others may not have."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise StoreError(f"the database cannot be in {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"the database cannot be in {folder}: it is no folder")
    if found.st_uid not in owners:
        raise StoreError(f"the database cannot be in {folder}: it belongs to another user")
    if found.st_mode & refused:
        raise StoreError(
            f"the database cannot be in {folder}: others may use it",
            hint=f"chmod 700 {folder} makes it yours",
        )


def first_free_number(data: Path) -> int:
    """One more than the highest job number with a log or a run record: job numbers are never reused."""
    names = [path.name for folder in ("logs", "run") for path in (data / folder).glob("*")]
    numbers = [name.split(".")[0].split("_")[0] for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1


# SQLite's primary result codes for errors of the disk, not of the file's content.
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
    """The error for a folder that a daemon cannot use, with the reason and a hint."""
    place = _nearest(folder)
    number = getattr(error, "errno", None)
    disk = _disk_of(place)
    if number in _FULL or (disk is not None and disk.f_blocks and not disk.f_bavail):
        why, hint = "its disk is full", "free some space and start gflowd again; nothing is lost"
    elif number == errno.EROFS or (disk is not None and disk.f_flag & os.ST_RDONLY):
        why, hint = "its file system is read-only", "mount it writable (dmesg may say why it is not)"
    elif not os.access(place, os.W_OK | os.X_OK):
        why = f"{'it' if place == folder else place} may not be written to"
        hint = f"check its owner: ls -ld {place}"
    else:
        why = str(error)  # an error of the operating system, which names the file
        hint = "check the owners of its files (ls -l) and the disk (dmesg)"
    return StoreError(f"gflowd cannot work in {folder}: {why}", hint=hint)


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))


def _disk_of(place: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(place)
    except OSError:
        return None
