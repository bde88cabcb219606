"""The folders of the machine's daemon: root's, and not to be prepared by somebody else."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from gflow.daemon.settings import Settings
from gflow.errors import Refused

log = logging.getLogger("gflow.daemon")
# For development: run as root from a checkout that is not root's.
TRUST = "GFLOW_TRUST_INSTALLATION"
# What nobody but root looks into; what everybody may enter; what everybody may enter and nobody list.
CLOSED, OPEN, BLIND = 0o700, 0o755, 0o711


def prepare(settings: Settings) -> None:
    """Make the folders of a daemon for everybody, or refuse those that are not safe."""
    _own(settings.data, CLOSED)
    _own(settings.run_dir, CLOSED)
    _own(settings.socket.parent, OPEN)
    _own(settings.shown_dir, BLIND)
    for file in settings.config.files:
        _check(Path(file), "rewritten")


def check_installation() -> None:
    """Refuse to run as root what another user could rewrite, as sshd does: that user would be root."""
    place = rewritable(_loaded_from())
    if place is None:
        return
    if os.environ.get(TRUST):
        log.warning("%s could be changed by another user than root; %s is set", place, TRUST)
        return
    raise Refused(
        f"{place} could be changed by another user than root, and gflow would run it as root",
        hint="install gflow where only root can write, such as a virtual environment under /opt",
    )


def _loaded_from() -> list[str]:
    """The interpreter, every folder that modules are loaded from, and every file of theirs."""
    tops = {os.path.abspath(place) for place in (sys.executable, *sys.path)}
    places = {_nearest(place) for one in tops for place in (one, os.path.realpath(one))}
    real = lru_cache(maxsize=None)(os.path.realpath)
    for file in set(_module_files()):
        folder, name = os.path.split(os.path.abspath(file))
        places |= {os.path.join(folder, name), os.path.join(real(folder), name)}
    return sorted(places, key=len)  # a folder before what is in it


def _module_files() -> Iterator[str]:
    """Files of the modules that are loaded, compiled ones too, and all files of their packages.

    Some modules of a package are loaded when they are needed, and our own has the native shim. The standard
    library is large: of that one only what is loaded counts.
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
    """The path, or the first folder above it that is there: what is missing, its owner could make."""
    return next(str(place) for place in (Path(path), *Path(path).parents) if place.exists())


def rewritable(paths: Iterable[str | Path]) -> Path | None:
    """The first of these, or of the folders above them, that somebody else than root could change.

    What a symbolic link leads to counts as well, but not the folders above that.
    """
    seen = set[str]()
    for path in paths:
        place = os.path.abspath(path)
        while place not in seen:  # if it was, so were the folders above it
            seen.add(place)
            found = os.lstat(place)
            if _is_others(found) or (stat.S_ISLNK(found.st_mode) and _is_others(os.stat(place))):
                return Path(place)
            place = os.path.dirname(place)
    return None


def _is_others(found: os.stat_result) -> bool:
    """Whether somebody else than root owns this or may write to it.

    Of folders the group may be another one: Debian's /usr/local belongs to `staff`, who are as good as root.
    """
    mode = found.st_mode
    if stat.S_ISLNK(mode):
        return bool(found.st_uid)
    is_open = mode & 0o002 and not mode & stat.S_ISVTX
    is_groups = stat.S_ISREG(mode) and mode & 0o020 and found.st_gid
    return bool(found.st_uid or is_open or is_groups)


def check_trusted(path: Path) -> None:
    """Refuse a file that somebody else than root has made or could change."""
    place = rewritable([path])
    if place is None and path.stat().st_mode & 0o022:
        place = path
    if place is not None:
        raise Refused(
            f"{path} could have been made or changed by somebody else than root (see {place})",
            hint="copy it to a folder of root's if you know that it is what it should be",
        )


def _own(folder: Path, mode: int) -> None:
    umask = os.umask(0o022)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.umask(umask)
    try:
        folder.mkdir(mode=mode)
    except FileExistsError:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise Refused(f"{folder} is not a folder", hint="move it away") from None
        _check(folder, "prepared")
    folder.chmod(mode)


def _check(path: Path, what: str) -> None:
    """Refuse what somebody else has made or could change."""
    found = path.stat()
    if {path.lstat().st_uid, found.st_uid} != {os.geteuid()} or found.st_mode & 0o022:
        raise Refused(
            f"{path} could have been {what} by somebody else than root",
            hint=f"see what is in it; then: chown root {path}; chmod go-w {path}",
        )
