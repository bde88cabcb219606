"""Builders of specs, jobs, GPUs and events. Everything that is not given has a default."""

from __future__ import annotations

from typing import Any

from gflow.core.events import Exited, Submit
from gflow.core.ids import JobKey, job_key
from gflow.core.model import FINAL, ArrayProgress, Gpu, Job, JobState, Spec
from gflow.core.reasons import parse
from gflow.core.task_set import parse_tasks
from gflow.testing.clock import FakeClock

USERS = {0: "root", 1001: "ann", 1002: "bob"}


def spec(**fields: Any) -> Spec:
    """Build a spec. Defaults: the command `true` in /tmp, and retries without a delay."""
    usual: dict[str, Any] = {"command": ("true",), "cwd": "/tmp", "retry_delay_s": 0}
    return Spec(**usual | fields)


def job(number: int = 1, *, task: int | None = None, uid: int = 1001, **fields: Any) -> Job:
    """Build a job from fields of Spec and of Job. Fields that its state requires are filled in.

    A reason may be given as its text.
    """
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
    fields["reason"] = parse(str(fields.get("reason", "")))
    return Job(key=job_key(number, task), spec=spec(**asked), uid=uid, **usual | fields)


def running(number: int = 1, *gpu_ids: int, **fields: Any) -> Job:
    """Build a running job with these GPUs."""
    return job(number, gpus=len(gpu_ids), gpu_ids=gpu_ids, state=JobState.RUNNING, **fields)


def progress(pending: str = "", **counts: int) -> ArrayProgress:
    """Build the progress of an array; its waiting tasks as in `--array`."""
    return ArrayProgress(parse_tasks(pending), **counts)


def gpus(count: int, *, model: str = "NVIDIA A100-SXM4-80GB", memory_mib: int = 81559) -> tuple[Gpu, ...]:
    """Build `count` equal GPUs, with indices from 0."""
    return tuple(
        Gpu(index=index, uuid=f"GPU-{index:04}", model=model, memory_mib=memory_mib, simulated=True)
        for index in range(count)
    )


def submit(
    clock: FakeClock, *specs: Spec, uid: int = 1001, outcomes: dict[JobKey, JobState] | None = None
) -> Submit:
    """Build the submission of these specs. `outcomes`: final states of parents that left memory."""
    return Submit(at=clock.now(), uid=uid, user=_user(uid), specs=specs or (spec(),), outcomes=outcomes or {})


def exited(
    clock: FakeClock, job: Job, code: int | None = 0, *, signal: int | None = None, problem: str = ""
) -> Exited:
    """Build the end of the current attempt of a job."""
    why = parse(problem)
    return Exited(at=clock.now(), key=job.key, attempt=job.attempt, code=code, signal=signal, problem=why)


def _user(uid: int) -> str:
    return USERS.get(uid, f"user{uid}")
