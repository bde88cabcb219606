"""Folders of the daemon in system mode: only root may own or prepare them."""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from gflow.daemon.process import instance_lock
from gflow.daemon.settings import Settings
from gflow.errors import Refused
from gflow.targets.local.shim import private_tmp

log = logging.getLogger("gflow.daemon")
# For development: run as root from a checkout that root does not own.
TRUST = "GFLOW_TRUST_INSTALLATION"
# Modes of folders: only root reads; all users may list; all users may enter but not list. And the scheduler
# makes files, and cannot rename or remove what is root's.
CLOSED, OPEN, BLIND, SHARED = 0o700, 0o755, 0o711, 0o1770


def launcher_log(settings: Settings) -> Path:
    """The log of the launcher."""
    return settings.data.parent.parent / "log/gflow/launcher.log"


def prepare(settings: Settings, gid: int) -> None:
    """Create the folders of the daemon in system mode, or refuse unsafe ones. `gid`: of the scheduler."""
    make_shared(settings, gid)
    _make_folder(launcher_log(settings).parent, CLOSED)
    _make_folder(settings.run_dir, CLOSED)
    _make_folder(settings.socket.parent, OPEN)
    _make_folder(settings.job_files_dir, BLIND)
    for file in settings.config.files:
        _check_owner(Path(file), "rewritten")
    if settings.rules.has_private_tmp and (why := _find_private_tmp_error(settings.data)):
        raise Refused(
            f"jobs.private_tmp cannot be used here: {why}",
            hint="it needs mount namespaces, and a root folder that is a mount; or set it to false",
        )


def make_shared(settings: Settings, gid: int) -> None:
    """Create the folders in which root and the scheduler have files."""
    _make_folder(settings.data, SHARED, gid)
    _make_folder(settings.logs, SHARED, gid)


def open_daemon_log(settings: Settings, uid: int, gid: int) -> int:
    """Open the daemon's log as root, for `gflowd up`. OSError: it is not a file of the daemon alone.

    The scheduler, whose it is, could have put a link in its place.
    """
    make_shared(settings, gid)
    path, flags = settings.logs / "daemon.log", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_NONBLOCK)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    found = os.fstat(fd)
    if not _is_only_name(found) or found.st_uid not in (0, uid):
        os.close(fd)
        raise PermissionError(errno.EPERM, "it is not a file of the daemon alone", str(path))
    os.fchown(fd, uid, gid)
    return fd


def give_to_scheduler(settings: Settings, uid: int, gid: int) -> None:
    """Give root's files in the daemon's folder to the scheduler: those of a daemon that was one process, and
    those that commands of root made. Called with the lock, while no scheduler runs."""
    left = {settings.run_dir.name, instance_lock.lock_path(settings.data).name}
    folder = os.open(settings.data, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _give(folder, uid, gid, {settings.logs.name}, left)
    finally:
        os.close(folder)
    if settings.database.parent != settings.data:
        _give_database(settings.database.parent, uid, gid)


def _give_database(place: Path, uid: int, gid: int) -> None:
    """Give the folder of a database that is on a local disk (`store.location`). That around it is root's."""
    place.parent.chmod(BLIND)
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _give(folder, uid, gid)
        os.fchown(folder, uid, gid)
    finally:
        os.close(folder)


def _give(folder: int, uid: int, gid: int, kept: Container[str] = (), left: Container[str] = ()) -> None:
    """Give what is in a folder: by descriptor, no link is followed, and no file that has another name too.

    `kept`: entries that stay root's; `left`: entries of which also the content does.
    """
    for name in os.listdir(folder):
        if name in left:
            continue
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError:  # a link, a socket, or it has just gone
            continue
        try:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                _give(fd, uid, gid)
            is_ours = found.st_uid == 0 and name not in kept
            if is_ours and (stat.S_ISDIR(found.st_mode) or _is_only_name(found)):
                os.fchown(fd, uid, gid)
        finally:
            os.close(fd)


def _is_only_name(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _find_private_tmp_error(data: Path) -> str:
    """Why jobs cannot have a /tmp of their own on this machine; empty: they can. Tried in a child process."""
    folder = data / "private-tmp"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            private_tmp.enter(str(folder))
        except OSError as error:
            os.write(writing, str(error.strerror).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        why = file.read().decode(errors="replace")
    os.waitpid(pid, 0)
    if folder.is_dir():
        folder.rmdir()
    return why


def check_installation() -> None:
    """Refuse to run code as root that another user could change, as sshd does: it would give them root."""
    place = rewritable(_loaded_from())
    if place is None:
        return
    if os.environ.get(TRUST):
        log.warning("%s could be changed by a user other than root; %s is set", place, TRUST)
        return
    raise Refused(
        f"{place} could be changed by a user other than root, and gflow would run it as root",
        hint="install gflow where only root can write, such as a virtual environment under /opt",
    )


def _loaded_from() -> list[str]:
    """The interpreter, each folder that modules are loaded from, and each file of the modules."""
    tops = {os.path.abspath(place) for place in (sys.executable, *sys.path)}
    places = {_nearest(place) for one in tops for place in (one, os.path.realpath(one))}
    real = lru_cache(maxsize=None)(os.path.realpath)
    for file in set(_module_files()):
        folder, name = os.path.split(os.path.abspath(file))
        places |= {os.path.join(folder, name), os.path.join(real(folder), name)}
    return sorted(places, key=len)  # a folder before its contents


def _module_files() -> Iterator[str]:
    """Files of the loaded modules, also compiled ones, and all files of their packages.

    Some modules of a package are loaded later, and gflow contains the native shim. Of the standard library,
    which is large, only the loaded modules count.
    """
    packages = set[str]()
    for name, module in sorted(sys.modules.items()):
        files = (getattr(module, "__file__", None), getattr(module, "__cached__", None))
        yield from (file for file in files if file and os.path.lexists(file))
        if "." not in name and name not in sys.stdlib_module_names:
            packages.update(getattr(module, "__path__", ()))
    for package in packages:
        for folder, _, names in os.walk(package):
            yield from (os.path.join(folder, name) for name in names)


def _nearest(path: str) -> str:
    """The path, or the nearest existing folder above it: its owner could create the missing part."""
    return next(str(place) for place in (Path(path), *Path(path).parents) if place.exists())


def rewritable(paths: Iterable[str | Path], owners: Container[int] = (0,)) -> Path | None:
    """The first of these paths, or of the folders above them, that a user other than `owners` could change.

    The target of a symbolic link counts as well, but not the folders above the target.
    """
    seen = set[str]()
    for path in paths:
        place = os.path.abspath(path)
        while place not in seen:  # if it was seen, so were the folders above it
            seen.add(place)
            if _is_rewritable(place, owners):
                return Path(place)
            place = os.path.dirname(place)
    return None


def _is_rewritable(path: str, owners: Container[int]) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:  # compiled modules have a temporary name at first; the folder above decides
        return False
    is_target_changeable = stat.S_ISLNK(found.st_mode) and _is_changeable(os.stat(path), owners)
    return is_target_changeable or _is_changeable(found, owners)


def _is_changeable(found: os.stat_result, owners: Container[int]) -> bool:
    """Whether a user other than `owners` owns this or may write to it.

    A folder may be writable by another group: Debian's /usr/local belongs to `staff`, whose members are as
    trusted as root.
    """
    mode = found.st_mode
    if stat.S_ISLNK(mode):
        return found.st_uid not in owners
    is_world_writable = mode & 0o002 and not mode & stat.S_ISVTX
    is_group_writable = stat.S_ISREG(mode) and mode & 0o020 and found.st_gid
    return found.st_uid not in owners or bool(is_world_writable or is_group_writable)


def check_trusted(path: Path, scheduler_uid: int) -> None:
    """Refuse a file that a user other than root or the scheduler created or could change."""
    place = rewritable([path], {0, scheduler_uid})
    if place is None and path.stat().st_mode & 0o022:
        place = path
    if place is not None:
        raise Refused(
            f"{path} could have been made or changed by a user other than root (see {place})",
            hint="if its content is right, copy it to a folder that only root can write",
        )


def _make_folder(folder: Path, mode: int, gid: int | None = None) -> None:
    umask = os.umask(0o022)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.umask(umask)
    try:
        folder.mkdir(mode=mode)
    except FileExistsError:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise Refused(f"{folder} is not a folder", hint="move it away") from None
        _check_owner(folder, "prepared", is_shared=gid is not None)
    if gid is not None:
        os.chown(folder, -1, gid)
    folder.chmod(mode)


def _check_owner(path: Path, what: str, *, is_shared: bool = False) -> None:
    """Refuse a path that another user created or could change. `is_shared`: its group may."""
    found = path.stat()
    others = 0o002 if is_shared and found.st_mode & stat.S_ISVTX else 0o022
    if {path.lstat().st_uid, found.st_uid} != {os.geteuid()} or found.st_mode & others:
        raise Refused(
            f"{path} could have been {what} by a user other than root",
            hint=f"check its content; then: chown root {path}; chmod go-w {path}",
        )
