"""What `gjob why --json` prints, for Python programs and assistants: with the rights of the caller."""

from __future__ import annotations

import os
from typing import Any

from gflow.client import http
from gflow.errors import Forbidden
from gflow.job_states import FINAL_NAMES, JobState


def explain_job(name: str) -> dict[str, Any]:
    """Why a job waits, whether it is slow while it runs, or why it ended.

    A running job is observed for two seconds.
    """
    job = http.get(http.job_path(name), tasks="0")["jobs"][0]
    if job["state"] in FINAL_NAMES:
        ended: dict[str, Any] = http.get(http.job_path(name, "/diagnosis"))
        return ended
    answer: dict[str, Any] = http.get(http.job_path(name, "/why"))
    if job["state"] != JobState.RUNNING.value or job["tasks"] is not None:
        return answer
    from gflow.client.run_observation import judge_job, run_view

    return answer | run_view(job, judge_job(job, _refuse_root))


def _refuse_root(uid: int) -> None:
    """Refuse to observe another user's processes as root: their owner controls the files they name."""
    if os.geteuid() == 0 and uid:
        raise Forbidden("root must use gjob why for other users' running jobs, which acts as their owner")
