"""MCP tools that read and change nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

from gflow.client import http
from gflow.client.job_explanation import explain_job
from gflow.client.logs import start_of_last
from gflow.core.reasons import parse
from gflow.errors import Refused
from gflow.job_states import FINAL_NAMES, WAITING_NAMES

Answer = dict[str, Any]
# Fields of a job in a summary.
BRIEF = (
    "id", "name", "user", "state", "reason", "gpus", "gpu_ids", "priority", "submitted_at", "started_at",
    "finished_at", "exit_code",
)  # fmt: skip
MOST_BYTES = 200_000


def get_health() -> Answer:
    """Whether the gflow daemon is running and accepts changes."""
    return answer("/health")


def get_info() -> Answer:
    """The GPUs of this machine: which jobs use them, which are free, and their faults."""
    return answer("/info", long="1")


def get_gpu_memory() -> Answer:
    """The memory of each GPU: used and free, its processes with their jobs, and what a new job can get."""
    return answer("/gpus/memory")


def list_jobs(
    states: str = "",
    user: str = "",
    limit: int = 50,
    offset: int = 0,
    since: str = "",
    newest_first: bool = True,
    detail: Literal["summary", "full"] = "summary",
) -> Answer:
    """List jobs, including finished ones. `states`: Queued,Failed,…; `since`: today, 2026-01-31, 2h."""
    found = answer(
        "/jobs",
        all="1",
        states=states,
        users=user,
        since=since,
        limit=str(limit),
        offset=str(offset),
        sort="-id" if newest_first else "id",
    )
    if detail == "summary":
        found["jobs"] = [{key: job[key] for key in BRIEF} for job in found["jobs"]]
    return found


def get_job(job: str) -> Answer:
    """Show all details of one job: an id (42), a task of an array (42_3), or @ for the latest."""
    return answer(http.job_path(job))


def why(job: str) -> Answer:
    """Why a job waits: all that blocks it, its expected start, and changes that would start it now."""
    return answer(http.job_path(job, "/why"))


def diagnose_job(job: str) -> Answer:
    """Why a job failed, is slow or stuck while it runs, or waits: causes, evidence, and what to do.

    An ended job has causes with their evidence in its log. A running one is observed for two seconds and
    has a verdict: fine, slow, stuck, starting or unknown. A waiting one has what blocks it.
    """
    return explain_job(job)


def get_job_log(
    job: str, first_lines: int | None = None, last_lines: int | None = None, max_bytes: int = 20_000
) -> Answer:
    """The log of a job: all of it, or its first or last lines; at most `max_bytes`."""
    place = answer(http.job_path(job, "/log"))
    path = place["path"]
    if place["uid"] != os.geteuid():
        raise Refused("this log belongs to another user", hint="gjob log reads it as its owner")
    most = max(0, min(max_bytes, MOST_BYTES))
    if not os.path.exists(path):
        return {"job_id": place["job_id"], "path": path, "size": 0, "content": "", "cut": False}
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = start_of_last(file.fileno(), last_lines) if last_lines is not None else 0
        file.seek(max(start, size - most) if last_lines is not None else 0)
        content = file.read(most)
    if first_lines is not None:
        content = b"".join(content.splitlines(keepends=True)[:first_lines])
    text = content.decode(errors="replace")
    return {
        "job_id": place["job_id"],
        "path": path,
        "size": size,
        "content": text,
        "cut": len(content) < size,
    }


def get_stats(user: str = "", since: str = "", everybody: bool = False) -> Answer:
    """Usage statistics: jobs, waits, GPU-hours, success rate; of the caller by default."""
    return answer("/stats", user=user, since=since, all="1" if everybody else "")


def get_queue_pressure() -> Answer:
    """How loaded the machine is: free and busy GPUs, running, waiting and held jobs, and why they wait."""
    status, info = answer("/status"), answer("/info")
    waiting = answer("/jobs", states=",".join(WAITING_NAMES), limit="1000")
    reasons: dict[str, int] = {}
    for job in waiting["jobs"]:
        reason = parse(job["reason"] or job["state"]).code
        reasons[reason] = reasons.get(reason, 0) + 1
    return {
        "gpus_total": status["gpu_total"],
        "gpus_available": status["gpu_available"],
        "gpus_wanted": sum(job["gpus"] for job in waiting["jobs"]),
        "running": status["running"],
        "waiting": waiting["total"],
        "reasons": reasons,
        "drained": info["drained"],
    }


def list_reservations(user: str = "", active_only: bool = True) -> Answer:
    """GPU reservations of users, active and future."""
    return answer("/reservations", user=user, active="1" if active_only else "")


def triage_job(job: str, last_lines: int = 80, max_bytes: int = 20_000) -> Answer:
    """Why a job failed or waits: its state, its history, the end of its log, and likely causes."""
    shown = get_job(job)["jobs"][0]
    found: Answer = {"job": {key: shown[key] for key in BRIEF}, "hints": []}
    if shown["state"] in WAITING_NAMES:
        return found | {"why": why(str(shown["id"]))}
    log = get_job_log(str(shown["id"]), last_lines=last_lines, max_bytes=max_bytes)
    if shown["state"] in FINAL_NAMES:
        causes = diagnose_job(str(shown["id"]))["findings"]
        found["hints"] = [" ".join([one["summary"], *one["advice"]]) for one in causes]
    return found | {"history": answer(http.job_path(str(shown["id"]), "/history"))["events"], "log": log}


def doctor(job: str = "") -> Answer:
    """Check this machine: driver, GPUs, PyTorch, limits, disks, gflow; or the environment of one job.

    Each check is ok, a warning or a problem, with its fix as a command.
    """
    from gflow.client.doctor.examination import examine_job, examine_machine, view  # 50 ms

    return view(examine_job(job) if job else examine_machine())


def answer(path: str, **query: str) -> Answer:
    found: Answer = http.get(path, **query)
    return found


TOOLS: list[Callable[..., Any]] = [
    get_health, get_info, get_gpu_memory, list_jobs, get_job, why, diagnose_job, get_job_log, get_stats,
    get_queue_pressure, list_reservations, triage_job, doctor,
]  # fmt: skip
