"""The schema. Its constraints repeat the engine's invariants, so a bug cannot become a record."""

from __future__ import annotations

APPLICATION_ID = 0x67666C77  # "gflw": tells our file from another program's
VERSION = 1

SCHEMA = """
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;

CREATE TABLE jobs (
    key          INTEGER PRIMARY KEY,
    uid          INTEGER NOT NULL,
    user         TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN
                 ('Queued', 'Hold', 'Running', 'Finished', 'Failed', 'Cancelled', 'Timeout')),
    reason       TEXT NOT NULL,
    attempt      INTEGER NOT NULL CHECK (attempt >= 0),
    gpu_ids      TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    started_at   REAL,
    started_boot REAL,
    finished_at  REAL,
    exit_code    INTEGER,
    signal       INTEGER,
    stopping     TEXT,
    target       TEXT NOT NULL,
    spec         TEXT NOT NULL,
    CHECK (state != 'Running' OR (attempt > 0 AND started_at IS NOT NULL)),
    CHECK (stopping IS NULL OR state = 'Running'),
    CHECK ((finished_at IS NOT NULL) = (state IN ('Finished', 'Failed', 'Cancelled', 'Timeout')))
);
CREATE INDEX jobs_active ON jobs (key) WHERE state IN ('Queued', 'Hold', 'Running');
CREATE INDEX jobs_of_user ON jobs (uid, key);

-- A final job never changes again.
CREATE TRIGGER jobs_final BEFORE UPDATE ON jobs
WHEN old.state IN ('Finished', 'Failed', 'Cancelled', 'Timeout')
BEGIN SELECT raise(ABORT, 'a final job cannot change'); END;

-- One row for each GPU in use: the primary key is the promise that nobody shares it.
CREATE TABLE holds (
    gpu INTEGER PRIMARY KEY,
    key INTEGER NOT NULL REFERENCES jobs (key)
);
CREATE INDEX holds_of_job ON holds (key);

-- A submission's token, so that a retry after a lost answer finds the jobs it made.
CREATE TABLE submissions (
    uid   INTEGER NOT NULL,
    token TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    at    REAL NOT NULL,
    PRIMARY KEY (uid, token)
) WITHOUT ROWID;

-- Environments and scripts, once per distinct text.
CREATE TABLE blobs (
    hash  TEXT PRIMARY KEY,
    bytes BLOB NOT NULL
);
"""
