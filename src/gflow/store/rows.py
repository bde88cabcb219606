"""A job as a row of the `jobs` table, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from gflow.core.effects import Ran
from gflow.core.ids import JobKey, label
from gflow.core.model import ArrayProgress, Job, JobProgress, JobState, RemoteState, Spec
from gflow.core.reasons import ReasonKind, parse
from gflow.core.task_set import parse_tasks
from gflow.errors import StoreError
from gflow.store.open import WAY_OUT

COLUMNS = (
    "key", "uid", "user", "state", "reason", "attempt", "gpu_ids", "submitted_at", "started_at",
    "started_boot", "finished_at", "exit_code", "signal", "stopping", "target", "spec", "progress",
    "retries", "quick_ends", "cpu_ms", "peak_kib", "retry_at", "stop_now", "simulated", "ready_at",
    "abroad", "headway", "ran_s", "retry_boot",
)  # fmt: skip

# Columns that never change are not set again: SQLite would rewrite the index of each user's jobs.
_FOR_LIFE = {"key", "uid", "user"}
UPSERT = (
    f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "
    "ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in _FOR_LIFE)
)
# A job that is new and waits: the other columns have their defaults.
INSERT = (
    "INSERT INTO jobs (key, uid, user, state, reason, submitted_at, target, spec, progress, ready_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Jobs that were cancelled because a parent did not succeed. An index has the same condition.
CUT_OFF = f"reason LIKE '{ReasonKind.DEPENDENCY_FAILED.value}:%'"
SELECT = f"SELECT {', '.join(COLUMNS)} FROM jobs"

# Bytes of a usual spec; only the rest of a longer one counts as stored (people.max_kept_mib).
USUAL_BYTES = 1024

_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode_spec = msgspec.json.Decoder(Spec).decode
_decode_progress = msgspec.json.Decoder(ArrayProgress, dec_hook=lambda _, text: parse_tasks(text)).decode
_decode_remote = msgspec.json.Decoder(RemoteState).decode
_decode_report = msgspec.json.Decoder(JobProgress).decode
_STATES = {state.value: state for state in JobState}


def to_row(job: Job) -> tuple[Any, ...]:
    return (
        job.key,
        job.uid,
        job.user,
        job.state.value,
        str(job.reason),
        job.attempt,
        ",".join(map(str, job.gpu_ids)),
        job.submitted_at,
        job.started_at,
        job.started_boot,
        job.finished_at,
        job.exit_code,
        job.signal,
        job.stopping.value if job.stopping else None,
        job.target,
        _encode(job.spec).decode(),
        _encode(job.progress).decode() if job.progress else None,
        job.retries,
        job.quick_ends,
        job.cpu_ms,
        job.peak_kib,
        job.retry_at,
        job.stop_now,
        job.simulated,
        job.ready_at,
        _encode(job.remote).decode() if job.remote else None,
        _encode(job.progress_report).decode() if job.progress_report else None,
        job.ran_s,
        job.retry_boot,
    )


def to_new_row(job: Job) -> tuple[Any, ...]:
    """The values of INSERT."""
    return (
        job.key,
        job.uid,
        job.user,
        job.state.value,
        str(job.reason),
        job.submitted_at,
        job.target,
        _encode(job.spec).decode(),
        _encode(job.progress).decode() if job.progress else None,
        job.ready_at,
    )


def kept_size(spec: Spec) -> int:
    """Bytes of a job's spec on disk beyond the usual size; each task of an array has a copy."""
    more = len(_encode(spec)) - USUAL_BYTES
    if more <= 0:
        return 0
    return more * (1 + len(parse_tasks(spec.array))) if spec.array else more


def waiting_tasks(progress: str) -> int:
    """How many tasks of an array have no record yet, by its column `progress`."""
    return len(_decode_progress(progress).pending)


def attempt_row(ran: Ran) -> tuple[Any, ...]:
    """A row of `attempts`."""
    gpus = ",".join(map(str, ran.gpu_ids))
    return ran.key, ran.attempt, ran.started_at, ran.finished_at, gpus, ran.ran_s


def is_untouched(job: Job) -> bool:
    """Whether the short INSERT covers all of the job's values."""
    return not job.attempt and not job.is_final and not job.retries


def from_row(row: tuple[Any, ...], specs: dict[str, Spec]) -> Job:
    """Convert a row to a job. `specs` shares equal specs between the jobs of one read."""
    (key, uid, user, state, reason, attempt, gpu_ids, submitted_at, started_at, started_boot,
     finished_at, exit_code, signal, stopping, target, text, progress, retries, quick_ends,
     cpu_ms, peak_kib, retry_at, stop_now, simulated, ready_at, abroad, headway,
     ran_s, retry_boot) = row  # fmt: skip
    spec = specs.get(text)
    if spec is None:
        spec = specs[text] = _decode_spec(text)
    return Job(
        key=JobKey(key),
        spec=spec,
        uid=uid,
        user=user,
        submitted_at=submitted_at,
        state=_STATES[state],
        reason=parse(reason),
        attempt=attempt,
        gpu_ids=tuple(map(int, gpu_ids.split(","))) if gpu_ids else (),
        started_at=started_at,
        started_boot=started_boot,
        finished_at=finished_at,
        ran_s=ran_s,
        exit_code=exit_code,
        signal=signal,
        stopping=_STATES[stopping] if stopping else None,
        target=target,
        progress=_decode_progress(progress) if progress else None,
        retries=retries,
        quick_ends=quick_ends,
        cpu_ms=cpu_ms,
        peak_kib=peak_kib,
        retry_boot=retry_boot,
        retry_at=retry_at,
        stop_now=bool(stop_now),
        simulated=bool(simulated),
        ready_at=ready_at,
        remote=_decode_remote(abroad) if abroad else None,
        progress_report=_decode_report(headway) if headway else None,
    )


def damaged(key: int) -> StoreError:
    """The error for a job whose record cannot be read."""
    return StoreError(f"the record of job {label(JobKey(key))} in the database is damaged", hint=WAY_OUT)


def is_text(value: object) -> bool:
    """Whether a value of a row that was read as bytes could have been read as text."""
    try:
        return not isinstance(value, bytes) or value.decode() is not None
    except UnicodeDecodeError:
        return False


def job_of(row: tuple[Any, ...], specs: dict[str, Spec]) -> Job:
    """Convert a row to a job. Raises StoreError if the row is damaged."""
    try:
        return from_row(row, specs)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(row[0]) from error
