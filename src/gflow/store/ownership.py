"""Ownership of a database: it belongs to the system daemon, or to one user's private daemon.

A private daemon runs every job as its own user: with the database of the system daemon it would run other
users' jobs with its own rights. Each database records its kind of daemon, and the other kind refuses it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gflow.core.ids import JobKey, label
from gflow.errors import Refused

# Name of the record in `meta`, and its value for the system daemon.
KIND, SYSTEM = "kind", "system"
ROOT = 0


def private(uid: int) -> str:
    """The kind of this user's private daemon."""
    return f"private {uid}"


def owner_of(kind: str) -> int | None:
    """The only user whose jobs a daemon of this kind runs; None: all users."""
    return None if kind == SYSTEM else int(kind.removeprefix("private "))


def check(db: sqlite3.Connection, path: Path, kind: str) -> None:
    """Refuse a database of another daemon, or with active jobs of users that this daemon does not serve."""
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
            f"and this daemon runs only jobs of uid {owner}",
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
    """The kind of an older database without a record: this daemon's, unless its jobs prove otherwise.

    Root may use every private daemon, so jobs of root prove nothing there.
    """
    owner = owner_of(kind)
    if owner is None:
        return kind
    others = db.execute("SELECT 1 FROM jobs WHERE uid NOT IN (?, ?) LIMIT 1", (owner, ROOT)).fetchone()
    return SYSTEM if others else kind


def _foreign(path: Path, said: str) -> Refused:
    if said == SYSTEM:
        return Refused(
            f"{path} belongs to the system daemon: a private daemon would run all jobs as its own user",
            hint="use gflowd up --system or gflowd restore --system, as root",
        )
    return Refused(
        f"{path} belongs to the private daemon of uid {owner_of(said)}",
        hint="that user's own daemon opens it; without that file this one starts empty",
    )
