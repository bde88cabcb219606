"""Facts about the end of a job besides its record: GPU events, attempts, other jobs on its GPUs."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request

from gflow.core.ids import JobKey
from gflow.core.model import AuditEntry, Job, JobState
from gflow.daemon.api.request import context_of, while_connected
from gflow.daemon.api.visibility import Viewer
from gflow.daemon.auth.users import user_name
from gflow.daemon.context import Context
from gflow.errors import StoreError
from gflow.store import samples
from gflow.wire.answers.job_details import EarlierAttempt, EndFacts, GpuFault, GpuPeak, RunsOnGpu
from gflow.wire.encoding import key_label, rfc3339

log = logging.getLogger("gflow.api")
DAY_S = 86400.0
# Ends of other jobs that are read, and failed ones that are named.
MOST_ENDS = 500
MOST_NAMED = 5
# The driver's report about an error may be read this long after the job has ended.
LATE_S = 5.0
# The driver is asked every second: its report about a job may be read this long after the job's end, when the
# next one has the GPU. A job seldom fails in that time itself: CUDA takes most of it to initialize.
REPORT_S = 2.0
# Variables with the settings of PyTorch's allocator; the first is the newer name.
ALLOCATOR = (b"PYTORCH_ALLOC_CONF=", b"PYTORCH_CUDA_ALLOC_CONF=")
SUCCEEDED, FAILED = JobState.FINISHED.value, JobState.FAILED.value
# Audit entries of an attempt that was followed by another: `after attempt 1: ExitCode:1; next in 5 s`.
NEXT = frozenset({"retry", "requeued", "preempted"})
AFTER = "after attempt "


class OtherEnd(NamedTuple):
    """The end of another job on GPUs."""

    key: JobKey
    uid: int
    gpus: frozenset[int]
    state: str
    at: float


async def end_facts(request: Request, job: Job, viewer: Viewer) -> EndFacts | None:
    """The facts about an ended job; None for callers who may not see its details."""
    if not viewer.sees_details(job):
        return None
    context = context_of(request)
    audit = context.store.audit_of(job.key)
    ends = _other_ends(context, job) if job.gpu_ids else []
    found = EndFacts(
        gpu_faults=[],
        gpus=[],
        attempts=list(_attempts(audit)),
        runs=_other_runs(ends, job, viewer) if job.gpu_ids else [],
        stopped=_stopped(audit, viewer),
        allocator=_allocator(context, job),
    )
    if job.gpu_ids and not job.simulated:
        await _add_samples(request, job, viewer, ends, found)
    return found


def _attempts(audit: Iterable[AuditEntry]) -> Iterable[EarlierAttempt]:
    for line in audit:
        number, _, reason = line.detail.removeprefix(AFTER).partition(": ")
        if line.what in NEXT and line.detail.startswith(AFTER) and number.isdecimal():
            yield EarlierAttempt(int(number), reason.partition("; next in")[0])


def _stopped(audit: list[AuditEntry], viewer: Viewer) -> str | None:
    """Who cancelled the job, and from where."""
    for line in reversed(audit):
        if line.what == "cancel" and line.uid is not None:
            origin = f" ({line.origin})" if line.origin else ""
            return f"cancelled by {viewer.redact_user(user_name(line.uid))}{origin} at {rfc3339(line.at)}"
    return None


def _allocator(context: Context, job: Job) -> str | None:
    """The settings of PyTorch's allocator in the job's environment."""
    with suppress(StoreError):
        environ = context.store.blob(job.spec.environ) if job.spec.environ else b""
        for entry in environ.split(b"\0"):
            if entry.startswith(ALLOCATOR):
                return entry.partition(b"=")[2].decode(errors="replace")[:200]
    return None


# ------------------------------------------------------------ the GPUs of the job


async def _add_samples(
    request: Request, job: Job, viewer: Viewer, ends: list[OtherEnd], found: EndFacts
) -> None:
    context = context_of(request)
    faults, peaks = await while_connected(
        request, context.threads.run(viewer.uid, _read_samples, context.settings.samples, job)
    )
    sizes = {gpu.index: gpu.memory_mib for gpu in context.loop.state.machine.gpus.values()}
    own = [one for one in faults if not is_of_earlier(one, job.started_at or 0.0, ends)]
    found.gpu_faults += [GpuFault(one.gpu, rfc3339(float(one.at)), one.text) for one in own]
    found.gpus += [GpuPeak(gpu, peak, sizes.get(gpu, 0)) for gpu, peak in peaks]


def is_of_earlier(fault: samples.GpuFault, started_at: float, ends: Iterable[OtherEnd]) -> bool:
    """Whether the driver's report, timed in whole seconds, is about the job that failed on the GPU before."""
    if fault.at >= started_at + REPORT_S:
        return False
    failed = (one for one in ends if fault.gpu in one.gpus and one.state != SUCCEEDED)
    return any(fault.at - REPORT_S <= one.at <= started_at for one in failed)


def _read_samples(path: Path, job: Job) -> tuple[list[samples.GpuFault], list[tuple[int, int]]]:
    """Reports of the driver about the job's GPUs while it ran, and its most memory on each."""
    since, until = job.started_at or 0.0, (job.finished_at or 0.0) + LATE_S
    try:
        faults = samples.faults_of(path, job.gpu_ids, since, until)
        totals = samples.samples_of(path, job.label)[1]
    except sqlite3.Error as error:
        log.warning("the GPU samples cannot be read: %s", error)
        return [], []
    return faults, [(one.gpu, one.mean.memory_mib) for one in totals]


# ------------------------------------------------------------ other jobs on these GPUs


def _other_ends(context: Context, job: Job) -> list[OtherEnd]:
    """Jobs that ended in the day before this one, and those that ended with it."""
    until = (job.finished_at or 0.0) + LATE_S
    rows = context.store.ends_on_gpus(until - DAY_S, until, MOST_ENDS)
    return [
        OtherEnd(key, uid, frozenset(map(int, gpus.split(","))), state, at)
        for key, uid, gpus, state, at in rows
        if key != job.key
    ]


def _other_runs(ends: list[OtherEnd], job: Job, viewer: Viewer) -> list[RunsOnGpu]:
    """How other jobs ended by themselves: on each GPU of this one, and on the other GPUs."""
    seen = [
        one for one in ends if one.state in (SUCCEEDED, FAILED) and (viewer.sees_names or one.uid == job.uid)
    ]
    runs = [_runs(index, [one for one in seen if index in one.gpus]) for index in job.gpu_ids]
    return [*runs, _runs(None, [one for one in seen if not one.gpus & set(job.gpu_ids)])]


def _runs(gpu: int | None, ends: list[OtherEnd]) -> RunsOnGpu:
    failed = [one for one in ends if one.state == FAILED]
    return RunsOnGpu(gpu, len(ends), len(failed), [key_label(one.key) for one in failed[:MOST_NAMED]])
