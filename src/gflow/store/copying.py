"""Whole, checked copies of a database that may be in use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gflow.errors import StoreError
from gflow.store import files
from gflow.store.files import beside


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
        # All pages in one go: in steps, it would begin anew whenever the daemon commits in between.
        source.backup(made, pages=-1)
        made.execute("PRAGMA journal_mode = DELETE")
        problems = [row[0] for row in made.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        raise StoreError(f"{database} is damaged: {in_one_line(problems[0])}; no copy was made of it")


def in_one_line(problem: str) -> str:
    """What a check of SQLite's found, without the headline it sometimes has."""
    return problem.splitlines()[-1]
