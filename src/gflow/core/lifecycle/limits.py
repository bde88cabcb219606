"""Jobs that have GPUs and do not use them: shown, and stopped if somebody said so.

How far jobs say they are. Kept with the job, and told in its story at every tenth of the way.
"""

from __future__ import annotations

from gflow.core.effects import AddAuditEntry, Effect, Save, Stop
from gflow.core.events import Idled, IdleSeen, Progressed
from gflow.core.model import IDLE, Idle, Job, JobProgress, JobState
from gflow.core.state.state import State


def idle_seen(state: State, event: IdleSeen, effects: list[Effect]) -> None:
    """All jobs that do nothing with GPUs of theirs, as of now."""
    before = state.unused
    state.unused = {key: idle for key, idle in event.idle.items() if _runs(state.jobs.get(key), idle.attempt)}
    for key, idle in state.unused.items():
        if key not in before:
            effects.append(AddAuditEntry(key, "gpus idle", idle.text))
    effects += (AddAuditEntry(key, "gpus used again") for key in before.keys() - state.unused.keys())


def idled(state: State, event: Idled, effects: list[Effect]) -> None:
    """A job has used none of its GPUs for so long. Stop it, if that is longer than it may."""
    job = state.jobs.get(event.key)
    if job is None or not _runs(job, event.attempt) or job.stopping is not None:
        return
    limit = limit_s(state, job)
    if not limit or event.idle.unused_s < limit:
        return
    job.stopping, job.reason = JobState.CANCELLED, f"{IDLE}: {event.idle.text}"
    state.note_stop(job)
    effects += (Save(job), AddAuditEntry(job.key, "idle limit", event.idle.text), Stop(job.key, job.attempt))


def limit_s(state: State, job: Job) -> int:
    """For how long this job may leave its GPUs unused; 0: for ever."""
    return min((limit for limit in (job.spec.stop_if_idle_s, state.policy.stop_idle_s) if limit), default=0)


def _runs(job: Job | None, attempt: int) -> bool:
    return job is not None and job.state is JobState.RUNNING and job.attempt == attempt and bool(job.gpu_ids)


def idle_of(attempt: int, gpus: tuple[int, ...], unused_s: float, *, is_bare: bool) -> Idle:
    """These GPUs of a run, in words."""
    names = ",".join(map(str, gpus))
    what = f"no process on GPU {names}" if is_bare else f"GPU {names} not used"
    return Idle(attempt, unused_s, f"{what} for {spell_duration(unused_s)}")


def spell_duration(seconds: float) -> str:
    """`90 s`, `45 min`, `3 h`."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"


def progressed(state: State, event: Progressed, effects: list[Effect]) -> None:
    """Nothing is made durable for it: a job says this every second."""
    job = state.jobs.get(event.key)
    if job is None or job.state is not JobState.RUNNING or job.is_array or job.attempt != event.attempt:
        return
    before, job.headway = job.headway, event.headway
    now = event.headway.percent
    if now is not None and now // 10 > _percent(before) // 10:
        effects.append(AddAuditEntry(job.key, "progress", spell_progress(event.headway)))


def _percent(headway: JobProgress | None) -> int:
    return (headway.percent or 0) if headway is not None else 0


def spell_progress(headway: JobProgress) -> str:
    """`40 %, step 4000 of 10000, epoch 2 of 5, loss 2.314, 850 samples/s`, as far as it is known."""
    words = [] if headway.percent is None else [f"{headway.percent} %"]
    words.append(f"step {headway.step}" + (f" of {headway.steps}" if headway.steps else ""))
    if headway.epochs:
        words.append(f"epoch {min(headway.epoch + 1, headway.epochs)} of {headway.epochs}")
    if headway.loss is not None:
        words.append(f"loss {headway.loss:.4g}")
    if headway.samples_per_s:
        words.append(f"{headway.samples_per_s:.3g} samples/s")
    return ", ".join(words)
