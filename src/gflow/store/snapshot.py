"""Replacing one database by another: a crash at any moment leaves no mixture of the two.

Whole, checked copies of a database that may be in use.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from gflow.errors import StoreError
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
    for suffix in (*files.COMPANIONS, ""):  # logs first: a log must never be applied to another database
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


def back_up(database: Path, target: Path) -> Path:
    """A whole, checked copy of a database that may be in use. Appears under its name only when whole."""
    new = beside(target, ".new")
    try:
        files.make_folders(target.parent)
        copy(files.real(database), new)
        files.put_in_place(new, target)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{database} could not be backed up: {error}") from error
    finally:
        files.remove(new)
    return target


def copy(database: Path, new: Path) -> None:
    """Copy a database, and refuse one that is damaged."""
    files.remove(new)
    files.make_private(new)
    with closing(files.connect(database, "mode=ro")) as source, closing(files.connect(new)) as made:
        # All pages in one go: in steps, it would restart whenever the daemon commits in between.
        source.backup(made, pages=-1)
        made.execute("PRAGMA journal_mode = DELETE")
        problems = [row[0] for row in made.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        raise StoreError(f"{database} is damaged: {in_one_line(problems[0])}; no copy was made of it")


def in_one_line(problem: str) -> str:
    """What a check of SQLite's found, without the headline it sometimes has."""
    return problem.splitlines()[-1]
