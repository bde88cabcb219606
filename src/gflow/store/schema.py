"""The schema and its migrations. Constraints repeat the engine's invariants, so that a bug cannot
store an invalid record.

A new database is created by running all migrations in order, so a migrated file equals a new one
(a test compares them). Migrations only go forward; a file of a newer version is refused.
"""

from __future__ import annotations

APPLICATION_ID = 0x67666C77  # "gflw": identifies files of gflow

_FINAL = "('Finished', 'Failed', 'Cancelled', 'Timeout')"

_V1 = f"""
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
    CHECK ((finished_at IS NOT NULL) = (state IN {_FINAL}))
);
CREATE INDEX jobs_active ON jobs (key) WHERE state IN ('Queued', 'Hold', 'Running');
CREATE INDEX jobs_of_user ON jobs (uid, key);

-- A final job never changes again.
CREATE TRIGGER jobs_final BEFORE UPDATE ON jobs
WHEN old.state IN {_FINAL}
BEGIN SELECT raise(ABORT, 'a final job cannot change'); END;

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

# Arrays, retries, shared GPUs, the audit log.
_V2 = """
-- Defaults let a new job be written with a third of its columns. One CASE costs a tenth of
-- seven separate checks, and a job is active exactly while it has not finished.
CREATE TABLE new_jobs (
    key          INTEGER PRIMARY KEY,
    uid          INTEGER NOT NULL,
    user         TEXT NOT NULL,
    state        TEXT NOT NULL,
    reason       TEXT NOT NULL DEFAULT '',
    attempt      INTEGER NOT NULL DEFAULT 0,
    gpu_ids      TEXT NOT NULL DEFAULT '',
    submitted_at REAL NOT NULL,
    started_at   REAL,
    started_boot REAL,
    finished_at  REAL,
    exit_code    INTEGER,
    signal       INTEGER,
    stopping     TEXT,
    target       TEXT NOT NULL,
    spec         TEXT NOT NULL,
    progress     TEXT,
    retries      INTEGER NOT NULL DEFAULT 0,
    quick_ends   INTEGER NOT NULL DEFAULT 0,
    CHECK (CASE state
        WHEN 'Queued' THEN finished_at IS NULL AND stopping IS NULL
        WHEN 'Running' THEN finished_at IS NULL AND attempt > 0 AND started_at IS NOT NULL
        WHEN 'Hold' THEN finished_at IS NULL AND stopping IS NULL
        WHEN 'Finished' THEN finished_at IS NOT NULL AND stopping IS NULL
        WHEN 'Failed' THEN finished_at IS NOT NULL AND stopping IS NULL
        WHEN 'Cancelled' THEN finished_at IS NOT NULL AND stopping IS NULL
        WHEN 'Timeout' THEN finished_at IS NOT NULL AND stopping IS NULL
        ELSE 0 END)
);
INSERT INTO new_jobs (key, uid, user, state, reason, attempt, gpu_ids, submitted_at, started_at,
    started_boot, finished_at, exit_code, signal, stopping, target, spec)
SELECT key, uid, user, state, reason, attempt, gpu_ids, submitted_at, started_at,
    started_boot, finished_at, exit_code, signal, stopping, target, spec FROM jobs;
DROP TABLE jobs;
ALTER TABLE new_jobs RENAME TO jobs;
CREATE INDEX jobs_active ON jobs (key) WHERE finished_at IS NULL;
CREATE INDEX jobs_of_user ON jobs (uid, key);
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE TRIGGER jobs_final BEFORE UPDATE ON jobs
WHEN old.finished_at IS NOT NULL
BEGIN SELECT raise(ABORT, 'a final job cannot change'); END;

-- Who has which GPU: memory_mib 0 means alone. Shared jobs share with shared jobs only.
CREATE TABLE new_holds (
    gpu        INTEGER NOT NULL,
    key        INTEGER NOT NULL REFERENCES jobs (key),
    memory_mib INTEGER NOT NULL CHECK (memory_mib >= 0),
    PRIMARY KEY (gpu, key)
) WITHOUT ROWID;
INSERT INTO new_holds SELECT gpu, key, 0 FROM holds;
DROP TABLE holds;
ALTER TABLE new_holds RENAME TO holds;
CREATE INDEX holds_of_job ON holds (key);
CREATE TRIGGER holds_alone BEFORE INSERT ON holds
WHEN EXISTS (SELECT 1 FROM holds WHERE gpu = new.gpu AND (memory_mib = 0 OR new.memory_mib = 0))
BEGIN SELECT raise(ABORT, 'a GPU cannot be given to two jobs unless both share'); END;

-- The story of every job, and of every change of a setting: who, what, when, from where.
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY,
    at     REAL NOT NULL,
    key    INTEGER,
    uid    INTEGER,
    origin TEXT NOT NULL,
    what   TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX audit_of_job ON audit (key, id);
"""

# The resources that a job used.
_V3 = """
ALTER TABLE jobs ADD COLUMN cpu_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN peak_kib INTEGER NOT NULL DEFAULT 0;
"""

# The pause before a retry, kills without grace, and which jobs were cancelled because of a parent (for `gjob
# redo`).
_V4 = """
ALTER TABLE jobs ADD COLUMN retry_at REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN stop_now INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_cut_off ON jobs (reason) WHERE reason LIKE 'DependencyFailed:%';
"""

# Whether a job ran on simulated GPUs: statistics exclude those.
_V5 = """
ALTER TABLE jobs ADD COLUMN simulated INTEGER NOT NULL DEFAULT 0;
"""

# The work that passed a waiting job.
_V6 = """
ALTER TABLE jobs ADD COLUMN passed INTEGER NOT NULL DEFAULT 0;
"""

# Attempts before the one that is in the job's record. For older jobs, only the audit log has them, as text.
_V7 = """
CREATE TABLE attempts (
    key         INTEGER NOT NULL REFERENCES jobs (key) ON DELETE CASCADE,
    attempt     INTEGER NOT NULL,
    started_at  REAL NOT NULL,
    finished_at REAL NOT NULL,
    gpu_ids     TEXT NOT NULL,
    PRIMARY KEY (key, attempt)
) WITHOUT ROWID;
INSERT OR IGNORE INTO attempts
SELECT a.key, CAST(substr(a.detail, 9) AS INTEGER), a.at, b.at,
    iif(instr(a.detail, ' on GPU '), substr(a.detail, instr(a.detail, ' on GPU ') + 8), '')
FROM (SELECT key, attempt, started_at FROM jobs
      WHERE attempt > (started_at IS NOT NULL) AND progress IS NULL) j
CROSS JOIN audit a ON a.key = j.key AND a.what = 'started' -- few such jobs, and many lines of others
JOIN audit b ON b.id = (SELECT min(id) FROM audit WHERE key = a.key AND id > a.id
    AND what IN ('retry', 'requeued', 'leased', 'started'))
WHERE (j.started_at IS NULL OR CAST(substr(a.detail, 9) AS INTEGER) < j.attempt)
    AND b.what IN ('retry', 'requeued');
"""

# The time since which a job has waited for resources; it replaces the work that passed it.
_V8 = """
ALTER TABLE jobs RENAME COLUMN passed TO ready_at;
UPDATE jobs SET ready_at = submitted_at WHERE finished_at IS NULL;
"""

# The state of a remote job.
_V9 = """
ALTER TABLE jobs ADD COLUMN abroad TEXT;
"""

# The progress that jobs report.
_V10 = """
ALTER TABLE jobs ADD COLUMN headway TEXT;
"""

# Run times and pauses before retries use the engine's boot clock, which now continues after a reboot and
# starts at the wall clock. Active jobs are converted to it; run times of ended jobs come from the wall clock.
# `bulk` has unfinished bulk work (`store.bulk`).
_V11 = """
ALTER TABLE jobs ADD COLUMN ran_s REAL;
ALTER TABLE jobs ADD COLUMN retry_boot REAL NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN ran_s REAL NOT NULL DEFAULT 0;
DROP TRIGGER jobs_final;
UPDATE jobs SET started_boot = started_at, retry_boot = retry_at WHERE finished_at IS NULL;
UPDATE jobs SET ran_s = max(0, finished_at - started_at) WHERE finished_at IS NOT NULL;
UPDATE attempts SET ran_s = max(0, finished_at - started_at);
CREATE TRIGGER jobs_final BEFORE UPDATE ON jobs
WHEN old.finished_at IS NOT NULL
BEGIN SELECT raise(ABORT, 'a final job cannot change'); END;
CREATE TABLE bulk (
    id   INTEGER PRIMARY KEY,
    data TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0
);
"""

# Jobs that failed, newest first, for the overview: a day may have 100,000 ends and few failures.
_V12 = """
CREATE INDEX jobs_failed ON jobs (finished_at) WHERE state IN ('Failed', 'Timeout');
"""

MIGRATIONS = (_V1, _V2, _V3, _V4, _V5, _V6, _V7, _V8, _V9, _V10, _V11, _V12)
VERSION = len(MIGRATIONS)


def script_from(version: int) -> str:
    """SQL that migrates a database of `version` (0: empty) to the current one; its transaction stays open."""
    steps = "".join(MIGRATIONS[version:])
    marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
    return f"BEGIN IMMEDIATE; {steps} {marks}"
