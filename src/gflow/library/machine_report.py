"""`gflow.doctor`: the checks of a machine or of the environment of a job, as data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def doctor(job: object = None, *, gpu: bool | Iterable[int] = False, force: bool = False) -> dict[str, Any]:
    """Check this machine, or the environment of a job; returns what `gflow doctor --json` prints.

    `gpu`: also measure the free GPUs, or those with these numbers; `force`: also GPUs in use. A job is an id
    or a `gflow.Job`. Takes about half a second, and some 10 s per GPU that is measured.
    """
    from gflow.client.doctor.examination import examine_job, examine_machine, measure_gpus, view
    from gflow.errors import UsageError

    if job is not None and gpu is not False:
        raise UsageError("gpu and job do not go together")
    if job is not None:
        return view(examine_job(str(getattr(job, "id", job))))
    if isinstance(gpu, bool):
        return view(measure_gpus(is_forced=force) if gpu else examine_machine())
    return view(measure_gpus(tuple(gpu), is_forced=force))
