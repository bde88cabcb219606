"""Which daemon a database belongs to: the machine's, or one user's own.

A private daemon runs every job as its own user, so a database of the machine's in its hands would run
other people's jobs with its rights. Each database says whose it is, and the other kind refuses it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gflow.core.ids import JobKey, label
from gflow.errors import Refused

# The name under which `meta` has it, and the value for the machine's daemon.
KIND, SYSTEM = "kind", "system"
ROOT = 0


def private(uid: int) -> str:
    """The kind of the daemon that this user runs for themselves."""
    return f"private {uid}"


def owner_of(kind: str) -> int | None:
    """The only user whose jobs a daemon of this kind runs; None: all users."""
    return None if kind == SYSTEM else int(kind.removeprefix("private "))


def check(db: sqlite3.Connection, path: Path, kind: str) -> None:
    """Refuse a database that belongs to another daemon, or that would have this one run others' jobs."""
    said = recorded(db)
    if said is None:
        said = _by_evidence(db, kind)
    if said != kind:
        raise _foreign(path, said)
    owner = owner_of(kind)
    if owner is None:
        return
    found = db.execute(
        "SELECT key, uid FROM jobs WHERE finished_at IS NULL AND uid != ? LIMIT 1", (owner,)
    ).fetchone()
    if found is not None:
        raise Refused(
            f"job {label(JobKey(found[0]))} in {path} belongs to uid {found[1]}, "
            f"and this daemon runs jobs of uid {owner} alone",
            hint="gflowd restore BACKUP puts a backup without it in its place",
        )


def recorded(db: sqlite3.Connection) -> str | None:
    """The kind of daemon that a database names; None: it predates this field."""
    row = db.execute("SELECT value FROM meta WHERE name = ?", (KIND,)).fetchone()
    return str(row[0]) if row else None


def mark(db: sqlite3.Connection, kind: str) -> None:
    """Record the kind of daemon in a database that has none."""
    if recorded(db) is None:
        db.execute("INSERT INTO meta VALUES (?, ?)", (KIND, kind))


def _by_evidence(db: sqlite3.Connection, kind: str) -> str:
    """Whose an older database is: it is where this daemon keeps its own, unless its jobs say otherwise.

    Root may use anybody's daemon, so jobs of root are no evidence in a user's own.
    """
    owner = owner_of(kind)
    if owner is None:
        return kind
    others = db.execute("SELECT 1 FROM jobs WHERE uid NOT IN (?, ?) LIMIT 1", (owner, ROOT)).fetchone()
    return SYSTEM if others else kind


def _foreign(path: Path, said: str) -> Refused:
    if said == SYSTEM:
        return Refused(
            f"{path} belongs to the machine's daemon: a private one would run all jobs as its own user",
            hint="gflowd up --system and gflowd restore --system (as root) are for the machine's",
        )
    return Refused(
        f"{path} belongs to the private daemon of uid {owner_of(said)}",
        hint="that user's own daemon opens it; without that file this one starts empty",
    )
