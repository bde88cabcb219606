"""Specs, jobs, GPUs and events in one line each: everything that is not said has a sensible value."""

from __future__ import annotations

from typing import Any

from gflow.core.events import Exited, Submit
from gflow.core.ids import JobKey, job_key
from gflow.core.model import FINAL, ArrayProgress, Gpu, Job, JobState, Spec
from gflow.core.task_set import parse_tasks
from gflow.testing.clock import FakeClock

USERS = {0: "root", 1001: "ann", 1002: "bob"}


def spec(**fields: Any) -> Spec:
    """What was asked for: `true` in /tmp and retries without a pause, unless fields say otherwise."""
    usual: dict[str, Any] = {"command": ("true",), "cwd": "/tmp", "retry_delay_s": 0}
    return Spec(**usual | fields)


def job(number: int = 1, *, task: int | None = None, uid: int = 1001, **fields: Any) -> Job:
    """A job with fields of the spec and of the job alike. Its state fills in what it needs."""
    asked = {name: fields.pop(name) for name in Spec.__struct_fields__ if name in fields}
    clock = FakeClock()
    usual: dict[str, Any] = {"submitted_at": clock.wall, "user": _user(uid)}
    state = fields.get("state", JobState.QUEUED)
    if state is JobState.RUNNING:
        usual |= {"attempt": 1, "started_at": clock.wall, "started_boot": clock.boot}
    if state in FINAL:
        usual |= {"finished_at": clock.wall + 100}
        began, over = fields.get("started_at"), fields.get("finished_at", clock.wall + 100)
        usual |= {"ran_s": None if began is None or over is None else max(0.0, over - began)}
    return Job(key=job_key(number, task), spec=spec(**asked), uid=uid, **usual | fields)


def running(number: int = 1, *gpu_ids: int, **fields: Any) -> Job:
    """A job that has these GPUs."""
    return job(number, gpus=len(gpu_ids), gpu_ids=gpu_ids, state=JobState.RUNNING, **fields)


def progress(pending: str = "", **counts: int) -> ArrayProgress:
    """How far an array is; its waiting tasks as people write them."""
    return ArrayProgress(parse_tasks(pending), **counts)


def gpus(count: int, *, model: str = "NVIDIA A100-SXM4-80GB", memory_mib: int = 81559) -> tuple[Gpu, ...]:
    """Equal GPUs, from index 0."""
    return tuple(
        Gpu(index=index, uuid=f"GPU-{index:04}", model=model, memory_mib=memory_mib, simulated=True)
        for index in range(count)
    )


def submit(
    clock: FakeClock, *specs: Spec, uid: int = 1001, outcomes: dict[JobKey, JobState] | None = None
) -> Submit:
    """These specs, submitted together now. `outcomes`: how parents that left memory ended."""
    return Submit(at=clock.now(), uid=uid, user=_user(uid), specs=specs or (spec(),), outcomes=outcomes or {})


def exited(
    clock: FakeClock, job: Job, code: int | None = 0, *, signal: int | None = None, problem: str = ""
) -> Exited:
    """The end of the job's current attempt."""
    return Exited(at=clock.now(), key=job.key, attempt=job.attempt, code=code, signal=signal, problem=problem)


def _user(uid: int) -> str:
    return USERS.get(uid, f"user{uid}")
