"""MCP tools that read and change nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

from gflow.client import http
from gflow.client.logs import start_of_last
from gflow.core.reasons import ReasonKind, parse
from gflow.errors import Refused
from gflow.job_states import WAITING_NAMES

Answer = dict[str, Any]
# Fields of a job in a summary.
BRIEF = (
    "id", "name", "user", "state", "reason", "gpus", "gpu_ids", "priority", "submitted_at", "started_at",
    "finished_at", "exit_code",
)  # fmt: skip
MOST_BYTES = 200_000
# Texts in a log (lower case), and the likely cause of the failure.
SIGNS = (
    (("out of memory", "cuda oom", "outofmemoryerror"), "it ran out of memory: request more or use less"),
    (("no space left on device",), "the disk is full"),
    (("command not found", "no such file or directory"), "a file or program is missing: check paths, --venv"),
    (("modulenotfounderror", "importerror"), "a Python module is missing: check --venv or --conda-env"),
    (("nccl", "connection refused"), "processes of the job cannot reach each other"),
    (("permission denied",), "the job's user lacks a permission"),
)  # fmt: skip


def get_health() -> Answer:
    """Whether the gflow daemon is running and accepts changes."""
    return answer("/health")


def get_info() -> Answer:
    """The GPUs of this machine: which jobs use them, which are free, and their faults."""
    return answer("/info", long="1")


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
    content = log["content"].lower()
    found["hints"] = [hint for signs, hint in SIGNS if any(sign in content for sign in signs)]
    if parse(shown["reason"] or "").kind is ReasonKind.OUT_OF_MEMORY:
        found["hints"].insert(0, "the job used more host memory than it requested: raise --memory")
    return found | {"history": answer(http.job_path(str(shown["id"]), "/history"))["events"], "log": log}


def answer(path: str, **query: str) -> Answer:
    found: Answer = http.get(path, **query)
    return found


TOOLS: list[Callable[..., Any]] = [
    get_health, get_info, list_jobs, get_job, why, get_job_log, get_stats, get_queue_pressure,
    list_reservations, triage_job,
]  # fmt: skip
