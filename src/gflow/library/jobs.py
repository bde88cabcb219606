"""Submit, list, wait for and control jobs from Python."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gflow.client import hot_path, http
from gflow.client.jobfile import as_words
from gflow.client.logs import follow_log
from gflow.client.request_builder import describe
from gflow.client.retry import PATIENCE_S
from gflow.client.wait import exit_code_of, wait_for
from gflow.errors import Forbidden, GflowError, UsageError
from gflow.job_states import FINAL_NAMES
from gflow.options.job_options import CAPTURE, JOB
from gflow.options.parse import parse

Command = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
# Options that make several jobs of one submission.
SEVERAL = ("param", "param_file")


class JobFailed(GflowError):
    """A job did not succeed. `job` is its final state."""

    def __init__(self, job: dict[str, Any]) -> None:
        reason = f" ({job['reason']})" if job["reason"] else ""
        super().__init__(
            f"job {job['id']} ended as {job['state']}{reason} with exit code {exit_code_of(job)}",
            hint=f"its log: gjob log {job['id']}",
        )
        self.job = job


class Job:
    """A job, by its id. Other attributes are requested from the daemon on each access."""

    __slots__ = ("id",)

    def __init__(self, id: int | str) -> None:
        self.id = str(id)

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def info(self) -> dict[str, Any]:
        """All fields of `gjob show --json`."""
        found: dict[str, Any] = http.get(http.job_path(self.id))["jobs"][0]
        return found

    @property
    def state(self) -> str:
        """The name of the state, as in `gqueue --help`: Queued, Running, Finished, …"""
        return str(self.info()["state"])

    @property
    def done(self) -> bool:
        return self.state in FINAL_NAMES

    def wait(self, timeout: float | None = None) -> Job:
        """Wait for the end of the job. Raises TimeoutError after `timeout` seconds; the job continues."""
        wait_for(self.id, timeout)
        return self

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the job to succeed; returns its final state. Raises JobFailed if it did not succeed."""
        final = wait_for(self.id, timeout)
        if final["state"] != "Finished":
            raise JobFailed(final)
        return final

    def log(self) -> str:
        """The log of the job so far."""
        path = self._log_path()
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def follow(self) -> Iterator[bytes]:
        """Yield the log as it is written, of all attempts, until the job ends."""
        yield from follow_log(self.id, self._log_path())

    def cancel(self, *, now: bool = False) -> None:
        """Cancel the job: TERM, its grace time, KILL; `now` kills it immediately."""
        http.post("/jobs/cancel", {"jobs": [self.id], "now": now})

    def hold(self) -> None:
        http.post("/jobs/hold", {"jobs": [self.id]})

    def release(self) -> None:
        http.post("/jobs/release", {"jobs": [self.id]})

    def _log_path(self) -> str:
        place = http.get(http.job_path(self.id, "/log"))
        if os.geteuid() == 0 and place["uid"]:  # the user controls the path, which may be a link
            raise Forbidden("root must read other users' logs with gjob log, which reads them as their owner")
        return str(place["path"])


def submit(command: Command, **options: Any) -> Job:
    """Submit one job; options are those of `gbatch`: `submit("python train.py", gpus=1, time="2:00:00")`.

    A string is used like the single argument of `gbatch`: a script, a line for bash, or a program. A list
    is a command and its arguments, passed on unchanged.
    """
    if several := [name for name in SEVERAL if options.get(name)]:
        raise UsageError(f"{several[0]} makes several jobs", hint="gflow.sweep returns all of them")
    (job,) = sweep(command, **options)
    return job


def sweep(command: Command, **options: Any) -> list[Job]:
    """Submit the jobs of a sweep: `sweep("python train.py --lr {lr}", param={"lr": [0.1, 0.01]})`."""
    return submit_description(description(command, options))


def submit_description(job: str) -> list[Job]:
    """Submit a description (JSON); returns the jobs that the daemon creates."""
    return [Job(job["id"]) for job in http.parse_json(_answer(job, "/jobs"))["jobs"]]


def check_description(job: str) -> None:
    """Dry run: raise the error with which the daemon would refuse a description (JSON)."""
    _answer(job, "/jobs?dry-run")


def _answer(job: str, path: str) -> bytes:
    status, headers, content = _deliver(hot_path.submission(os.urandom(16).hex(), job), path)
    if status >= 400:
        raise http.refusal(headers, content, "application/json")
    return content


def _deliver(body: bytes, path: str) -> tuple[int, bytes, bytes]:
    """Send a submission, with retries while the daemon is unreachable. Its token makes them idempotent."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return hot_path.deliver(body, path, "application/json")
        except ConnectionError:
            if time.monotonic() > end:
                raise


def description(command: Command, options: dict[str, Any]) -> str:
    """The description of a job as JSON."""
    words = [word for name, value in options.items() if value is not None for word in as_words(name, value)]
    values, rest = parse(words, JOB + CAPTURE)
    if rest:
        raise UsageError(f"{rest[0]!a:.60} is not an option")
    if isinstance(command, (str, os.PathLike)):
        return describe(values, [os.fspath(command)])
    return describe(values, [os.fspath(word) for word in command])


def jobs(
    *,
    state: str | Iterable[str] = (),
    user: str | Iterable[str] = (),
    name: str | Iterable[str] = (),
    project: str | Iterable[str] = (),
    all: bool = False,
    limit: int = 0,
) -> list[dict[str, Any]]:
    """Jobs as in `gqueue --json`: active jobs, or with `all` also ended ones."""
    query = {"states": state, "users": user, "names": name, "projects": project}
    texts = {key: value if isinstance(value, str) else ",".join(value) for key, value in query.items()}
    found = http.get("/jobs", **texts, all="1" if all else "", limit=str(limit))
    listed: list[dict[str, Any]] = found["jobs"]
    return listed


def wait(jobs: Iterable[Job], timeout: float | None = None) -> list[dict[str, Any]]:
    """Wait for the end of all these jobs; returns their final states."""
    end = None if timeout is None else time.monotonic() + timeout
    return [wait_for(job.id, None if end is None else max(0.0, end - time.monotonic())) for job in jobs]
