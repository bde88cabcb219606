"""One database for another, so that a crash at any moment leaves no mixture of the two."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gflow.store import files
from gflow.store.files import beside

RESTORED = ".restored"


def swap_in(database: Path) -> Path | None:
    """Put DATABASE.restored, if there is one, in the database's place; where the old one went.

    The old database and its log cannot be moved in one step. As long as the restored file waits
    under its own name, the next call goes on where this one was cut off.
    """
    restored = beside(database, RESTORED)
    if not restored.exists():
        return None
    kept = _name_for_old(database, restored)
    for suffix in (*files.COMPANIONS, ""):  # the logs first: a log must not meet another database
        old = beside(database, suffix)
        if os.path.lexists(old):
            old.rename(beside(kept, suffix))
    files.sync(database.parent)
    files.put_in_place(restored, database)
    return kept if os.path.lexists(kept) else None


def _name_for_old(database: Path, restored: Path) -> Path:
    """The same name however often the swap is cut off, and never one that was used before."""
    seconds, nanoseconds = divmod(restored.stat().st_mtime_ns, 10**9)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))
    return beside(database, f".before-restore-{stamp}-{nanoseconds // 1000:06}")
