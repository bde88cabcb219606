"""A life of a store, the same every time: what is committed, and how a database looks after each commit."""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
from pathlib import Path

from gflow.core.ids import JobKey, job_key
from gflow.core.model import AuditEntry, Job, JobState, Spec
from gflow.store.port import Changes, Submission, address_of
from gflow.store.sqlite import SqliteStore

NOON = 1_750_000_000.0
# Jobs are of the user whose daemon may open the database later.
UID = os.getuid()
TABLES = ("meta", "jobs", "holds", "submissions", "blobs", "audit", "attempts", "bulk")
# Pages in the log before they are brought over: small, so that a short life has many checkpoints.
CHECKPOINT_PAGES = 12


def job(number: int, state: JobState = JobState.QUEUED, gpus: tuple[int, ...] = (), **fields: object) -> Job:
    """A job that wants one GPU and, by its state, has one, had one, or waits."""
    text = environment(number)
    spec = Spec(command=("train", str(number)), cwd="/work", gpus=1, environ=address_of(text))
    made = Job(key=job_key(number), spec=spec, uid=UID, user="ann", submitted_at=NOON + number)
    made.state = state
    if state is not JobState.QUEUED:
        made.attempt, made.gpu_ids = 1, gpus
        made.started_at, made.started_boot = NOON + number + 1, 1.0
    if state is JobState.FINISHED:
        made.finished_at, made.exit_code = NOON + number + 2, number % 128
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def environment(number: int) -> bytes:
    """What a submitter's variables look like; every fifth is long."""
    size = 30_000 if number % 5 == 0 else 1500
    return f"JOB={number}\0".encode() + random.Random(number).randbytes(size)


def submitted(number: int) -> Changes:
    made = job(number)
    return Changes(
        jobs={made.key: made},
        new={made.key},
        submissions=[Submission(made.uid, f"token-{number}", (made.key,), NOON)],
        blobs={made.spec.environ: environment(number)},
        meta={"next_number": number + 1},
        audit=[AuditEntry(NOON + number, made.key, 1000, "pid 1", "submitted", "")],
    )


def moved(*jobs: Job) -> Changes:
    """Jobs that start or end, in one commit."""
    lines = [AuditEntry(NOON, job.key, None, "daemon", job.state.value.lower(), "") for job in jobs]
    keys: dict[JobKey, Job] = {job.key: job for job in jobs}
    return Changes(jobs=keys, audit=lines, meta={"last": jobs[0].number})


def plan() -> list[Changes]:
    """Two jobs come, and whenever one ends the next starts on its GPU, in one commit."""
    steps = [submitted(1), submitted(2), moved(job(1, JobState.RUNNING, (0,)))]
    for number in range(3, 10):
        steps.append(submitted(number))
        over = job(number - 2, JobState.FINISHED, (0,))
        steps.append(moved(over, job(number - 1, JobState.RUNNING, (0,))))
    return steps


def contents(db: sqlite3.Connection) -> str:
    """All that a database holds, in a word."""
    digest = hashlib.blake2b(digest_size=12)
    for table in TABLES:
        digest.update(f"{table}:{db.execute(f'SELECT * FROM {table} ORDER BY 1, 2').fetchall()}".encode())
    return digest.hexdigest()


def open_store(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    store._db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    return store


def live(path: Path) -> list[str]:
    """Live the whole life without faults; the contents after 0, 1, 2 … commits."""
    store = open_store(path)
    found = [contents(store._db)]
    for changes in plan():
        store.commit(changes)
        found.append(contents(store._db))
    store.close()
    return found
