"""How far jobs say they are. Kept with the job, and told in its story at every tenth of the way."""

from __future__ import annotations

from gflow.core.effects import Effect, Note
from gflow.core.events import Progressed
from gflow.core.model import Headway, JobState
from gflow.core.state import State


def progressed(state: State, event: Progressed, effects: list[Effect]) -> None:
    """Nothing is made durable for it: a job says this every second."""
    job = state.jobs.get(event.key)
    if job is None or job.state is not JobState.RUNNING or job.is_array or job.attempt != event.attempt:
        return
    before, job.headway = job.headway, event.headway
    now = event.headway.percent
    if now is not None and now // 10 > _percent(before) // 10:
        effects.append(Note(job.key, "progress", spelled(event.headway)))


def _percent(headway: Headway | None) -> int:
    return (headway.percent or 0) if headway is not None else 0


def spelled(headway: Headway) -> str:
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
