"""Limits of running jobs (time, GPU memory, idle GPUs), and what monitors report about them.

A limit only starts the stop of a job; its exit ends it (`core.lifecycle.finish`). Progress reports are kept
with the job, and the audit log gets an entry at every 10 %.
"""

from __future__ import annotations

import heapq
from itertools import islice

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Save, Stop, Warn
from gflow.core.events import Idled, IdleSeen, Overran, Progressed, Stuck
from gflow.core.lifecycle.early_stop import judge_rules
from gflow.core.model import Idle, Job, JobProgress, JobState, Moment
from gflow.core.reasons import WARNED, Reason, ReasonKind
from gflow.core.scheduling.placement import gib
from gflow.core.state.state import State
from gflow.core.transitions import FAILED, RUNNING, TIMEOUT
from gflow.metric_names import MOST_METRICS


def warn_due(state: State, at: Moment, effects: list[Effect]) -> None:
    """Send the warning signal (`--signal`) to every job whose time limit is near."""
    while (due := state.deadlines.next_warning()) is not None and due <= at.boot:
        _, key, attempt = heapq.heappop(state.deadlines.warnings)
        job = state.jobs[key]
        job.reason = WARNED
        number, before_s = job.spec.warning
        note = AddAuditEntry(key, "warned", f"signal {abs(number)}, {before_s} s before the limit")
        effects += (Save(job), note, Warn(key, attempt, number))


def stop_overdue(state: State, at: Moment, effects: list[Effect]) -> None:
    """Stop every job that has reached its time limit."""
    while (due := state.deadlines.next_limit()) is not None and due <= at.boot:
        _, key, attempt = heapq.heappop(state.deadlines.limits)
        job = state.jobs[key]
        job.stopping = TIMEOUT
        state.running.note_stop(job)
        limit = f"after {job.spec.time_limit_s} s"
        effects += (Save(job), AddAuditEntry(key, "time limit", limit), Stop(key, attempt))


def overran(state: State, event: Overran, effects: list[Effect]) -> None:
    """Kill a job on a shared GPU that uses more memory than it declared.

    Without grace time: the other jobs on the GPU may allocate their share at any moment.
    """
    job = state.jobs.get(event.key)
    if job is None or job.state is not RUNNING or job.attempt != event.attempt:
        return
    if not job.spec.shared or job.stop_now:
        return
    used = f"used {gib(event.used_mib)} of {gib(job.spec.gpu_memory_mib)} on GPU {event.gpu}"
    over = Reason(ReasonKind.GPU_MEMORY, used)
    if job.stopping is None:
        job.stopping, job.reason = FAILED, over
    job.stop_now = True
    state.running.note_stop(job)
    note = AddAuditEntry(job.key, "gpu memory", str(over))
    effects += (Save(job), note, Stop(job.key, job.attempt, now=True))


def stuck(state: State, event: Stuck, effects: list[Effect]) -> None:
    """Record that a killed job has a process that does not die. The job keeps its resources."""
    job = state.jobs.get(event.key)
    if job is None or job.state is not RUNNING or job.attempt != event.attempt:
        return
    if state.running.stuck.get(job.key) != event.detail:
        state.running.stuck[job.key] = event.detail
        effects.append(AddAuditEntry(job.key, "unkillable", event.detail))


def idle_seen(state: State, event: IdleSeen, effects: list[Effect]) -> None:
    """Replace the list of jobs that leave GPUs unused; audit those that joined or left it."""
    before = state.running.unused
    state.running.unused = {
        key: idle for key, idle in event.idle.items() if _is_running(state.jobs.get(key), idle.attempt)
    }
    for key, idle in state.running.unused.items():
        if key not in before:
            effects.append(AddAuditEntry(key, "gpus idle", idle.text))
    effects += (AddAuditEntry(key, "gpus used again") for key in before.keys() - state.running.unused.keys())


def idled(state: State, event: Idled, effects: list[Effect]) -> None:
    """Stop a job that has used none of its GPUs for longer than its idle limit."""
    job = state.jobs.get(event.key)
    if job is None or not _is_running(job, event.attempt) or job.stopping is not None:
        return
    limit = idle_limit_s(state, job)
    if not limit or event.idle.unused_s < limit:
        return
    job.stopping, job.reason = JobState.CANCELLED, Reason(ReasonKind.IDLE_GPUS, event.idle.text)
    state.running.note_stop(job)
    effects += (Save(job), AddAuditEntry(job.key, "idle limit", event.idle.text), Stop(job.key, job.attempt))


def idle_limit_s(state: State, job: Job) -> int:
    """How long the job may leave its GPUs unused, in seconds; 0: no limit."""
    return min((limit for limit in (job.spec.stop_if_idle_s, state.policy.stop_idle_s) if limit), default=0)


def _is_running(job: Job | None, attempt: int) -> bool:
    return job is not None and job.state is JobState.RUNNING and job.attempt == attempt and bool(job.gpu_ids)


def idle_of(attempt: int, gpus: tuple[int, ...], unused_s: float, *, is_bare: bool) -> Idle:
    """Describe the unused GPUs of a run. `is_bare`: no process of the run is on them."""
    names = ",".join(map(str, gpus))
    what = f"no process on GPU {names}" if is_bare else f"GPU {names} not used"
    return Idle(attempt, unused_s, f"{what} for {spell_duration(unused_s)}")


def spell_duration(seconds: float) -> str:
    """Format a duration: `90 s`, `45 min`, `3 h`."""
    rounded = round(seconds)
    if rounded < 120:
        return f"{rounded} s"
    return f"{rounded // 60} min" if rounded < 7200 else f"{rounded // 3600} h"


def progressed(state: State, event: Progressed, effects: list[Effect]) -> None:
    """Keep a progress report in memory, and judge the job by it.

    It is not saved: a job reports as often as every second.
    """
    job = state.jobs.get(event.key)
    if job is None or job.state is not JobState.RUNNING or job.is_array or job.attempt != event.attempt:
        return
    before, report = job.progress_report, event.progress
    if event.only is not None and before is not None and before.at >= (job.started_at or 0.0):
        report = _merge_reports(before, report, event.only)
    if event.progress.left_s is None:
        report = msgspec.structs.replace(report, left_s=_estimated_left_s(job, before, report))
    job.progress_report = report
    if report.percent is not None and report.percent // 10 > _percent(before) // 10:
        effects.append(AddAuditEntry(job.key, "progress", spell_progress(report)))
    if job.spec.stop_when:
        judge_rules(state, job, report, effects)


def _merge_reports(before: JobProgress, report: JobProgress, only: tuple[str, ...]) -> JobProgress:
    """The earlier report with the fields `only` of this one, and its metrics."""
    fields = {name: getattr(report, name) for name in (*only, "at")}
    fields["step_at"] = 0.0 if "step" in only else before.step_at or before.at
    known = (before.metrics | report.metrics).items()
    metrics = dict(islice(((name, value) for name, value in known if name not in report.nan), MOST_METRICS))
    kept = (name for name in before.nan if name not in only and name not in report.metrics)
    nan = tuple(islice(dict.fromkeys((*report.nan, *kept)), MOST_METRICS))
    if "loss" in report.nan:
        fields["loss"] = None
    return msgspec.structs.replace(before, **fields | {"metrics": metrics, "nan": nan})


# Weight of the pace between the latest two reports in the estimated time to the end of a job.
PACE_WEIGHT = 0.2


def _estimated_left_s(job: Job, before: JobProgress | None, report: JobProgress) -> float | None:
    """The time to the end of a job that reports only its steps, from its pace so far, smoothed."""
    if before is None or before.at < (job.started_at or 0.0) or not report.steps:
        return None
    steps, seconds = report.step - before.step, report.at - (before.step_at or before.at)
    if steps < 0 or report.steps != before.steps:
        return None
    known = None if before.left_s is None else max(0.0, before.left_s - (report.at - before.at))
    if not steps or seconds <= 0:
        return known
    by_pace = max(0, report.steps - report.step) * seconds / steps
    return by_pace if known is None else known + PACE_WEIGHT * (by_pace - known)


def _percent(progress: JobProgress | None) -> int:
    return (progress.percent or 0) if progress is not None else 0


def spell_progress(progress: JobProgress) -> str:
    """Format a report: `40 %, step 4000 of 10000, epoch 2 of 5, loss 2.314, 850 samples/s`; omit unknowns."""
    words = [] if progress.percent is None else [f"{progress.percent} %"]
    words.append(f"step {progress.step}" + (f" of {progress.steps}" if progress.steps else ""))
    if progress.epochs:
        words.append(f"epoch {min(progress.epoch + 1, progress.epochs)} of {progress.epochs}")
    if progress.loss is not None:
        words.append(f"loss {progress.loss:.4g}")
    elif "loss" in progress.nan:
        words.append("loss nan")
    if progress.samples_per_s:
        words.append(f"{progress.samples_per_s:.3g} samples/s")
    return ", ".join(words)
