"""Replace a database by another, so that a crash never leaves a mixture of both; make verified copies of a
database that may be in use.
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
    """Replace the database by DATABASE.restored, if that exists; returns the new path of the old one.

    The old database and its log cannot be moved in one step. While the restored file has its temporary name,
    the next call continues an interrupted one.
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
    """The name for the old database: the same for each call of an interrupted swap, and not used before."""
    seconds, nanoseconds = divmod(restored.stat().st_mtime_ns, 10**9)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))
    return beside(database, f".before-restore-{stamp}-{nanoseconds // 1000:06}")


def back_up(database: Path, target: Path) -> Path:
    """Make a verified copy of a database that may be in use. It gets its name only when it is complete."""
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
        # All pages in one step: otherwise each commit of the daemon would restart the copy.
        source.backup(made, pages=-1)
        made.execute("PRAGMA journal_mode = DELETE")
        problems = [row[0] for row in made.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        raise StoreError(f"{database} is damaged: {in_one_line(problems[0])}; no copy was made of it")


def in_one_line(problem: str) -> str:
    """A message of SQLite's integrity check, without the headline that some have."""
    return problem.splitlines()[-1]
