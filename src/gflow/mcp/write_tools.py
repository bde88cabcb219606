"""MCP tools that change jobs, and tools that preview a change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from gflow.client import hot_path, http
from gflow.library.jobs import description
from gflow.mcp.read_tools import Answer, get_job
from gflow.options.update import FIXED
from gflow.wire.update import describe_options

ONE_LINE = "a program and its arguments as a list, or one line as for gbatch: a script or a shell command"
BY_NAME = 'options of gbatch by name: {"gpus": 1, "time": "2:00:00", "name": "x", "chdir": "/data"}'
Command = Annotated[str | list[str], Field(description=ONE_LINE)]
Options = Annotated[dict[str, Any], Field(description=BY_NAME)]


def preview_submit_jobs(command: Command, options: Options | None = None) -> Answer:
    """Show the jobs that a submission would create, without submitting it."""
    return _submit(command, options, "/jobs?dry-run=1")


def submit_jobs(command: Command, options: Options | None = None) -> Answer:
    """Submit a job, an array ("array": "1-10") or a sweep ("param": {"lr": [0.1, 0.01]}), as the caller."""
    return _submit(command, options, "/jobs")


def preview_update_job(job: str, options: Options) -> Answer:
    """Show the options of a job before and after an update, without changing it."""
    # Only the daemon knows the named shapes.
    describe_options({name: value for name, value in options.items() if name != "shape"}, FIXED, {})
    shown = get_job(job)["jobs"][0]
    after = {name: value for name, value in (shown["asked"] | options).items() if value is not None}
    return {"job": shown["id"], "state": shown["state"], "before": shown["asked"], "after": after}


def update_job(job: str, options: Options) -> Answer:
    """Change options of a job; null resets an option. While the job runs: time, priority, retries."""
    return post("/jobs/update", {"jobs": [job], "options": options})


def redo_job(job: str, options: Options | None = None, cascade: bool = False) -> Answer:
    """Run a job again as a new one, optionally with other options; `cascade`: also jobs cancelled with it."""
    body = {"job": job, "token": os.urandom(16).hex(), "options": options or {}, "cascade": cascade}
    return post("/jobs/redo", body)


def cancel_job(job: str, now: bool = False) -> Answer:
    """Cancel a job: TERM, its grace time, KILL; `now` kills it immediately."""
    return post("/jobs/cancel", {"jobs": [job], "now": now})


def hold_job(job: str) -> Answer:
    """Keep a waiting job from starting."""
    return post("/jobs/hold", {"jobs": [job]})


def release_job(job: str, at: str | None = None) -> Answer:
    """Release a held job, optionally not before a time (20:00, now+2h)."""
    return post("/jobs/release", {"jobs": [job], "at": at})


def post(path: str, body: dict[str, Any]) -> Answer:
    found: Answer = http.post(path, body)
    return found


def _submit(command: str | list[str], options: dict[str, Any] | None, path: str) -> Answer:
    body = hot_path.submission(os.urandom(16).hex(), description(command, options or {}))
    # The token makes a resend after a lost answer idempotent.
    status, headers, content = hot_path.deliver(body, path, "application/json")
    if status >= 400:
        raise http.refusal(headers, content, "application/json")
    found: Answer = json.loads(content)
    return found


PREVIEWS: list[Callable[..., Any]] = [preview_submit_jobs, preview_update_job]
CHANGES: list[Callable[..., Any]] = [submit_jobs, update_job, redo_job, hold_job, release_job]
DESTROYS: list[Callable[..., Any]] = [cancel_job]
