"""The folders of the machine's daemon: root's, and not to be prepared by somebody else."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterable
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


def _loaded_from() -> list[Path]:
    """The interpreter, this package, and every folder that modules are loaded from."""
    places = [sys.executable, __file__, *sys.path]
    absolute = [Path(os.path.abspath(place)) for place in places]
    return [_nearest(path) for one in absolute for path in (one, one.resolve())]


def _nearest(path: Path) -> Path:
    """The path, or the first folder above it that is there: what is missing, its owner could make."""
    return next(place for place in (path, *path.parents) if place.exists())


def rewritable(paths: Iterable[Path]) -> Path | None:
    """The first of these, or of the folders above them, that somebody else than root could change."""
    for path in paths:
        for place in (path, *path.parents):
            found = place.stat()
            is_open = found.st_mode & 0o002 and not found.st_mode & stat.S_ISVTX
            if found.st_uid or is_open:
                return place
    return None


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
