"""The folders of the machine's daemon: root's, and not to be prepared by somebody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from gflow.daemon.settings import Settings
from gflow.errors import Refused

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


def rewritable(paths: Iterable[Path]) -> Path | None:
    """The first of these, or of the folders above them, that somebody else than root could change."""
    for path in paths:
        for place in (path, *path.parents):
            found = place.stat()
            is_open = found.st_mode & 0o002 and not found.st_mode & stat.S_ISVTX
            if found.st_uid or is_open:
                return place
    return None


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
