"""Jobs as Python objects."""

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
from gflow.options.parse import parse
from gflow.options.table import CAPTURE, JOB

Command = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
FINAL = frozenset({"Finished", "Failed", "Cancelled", "Timeout"})
# Options that make several jobs of one submission.
SEVERAL = ("param", "param_file")


class JobFailed(GflowError):
    """A job did not succeed. `job` is how it ended."""

    def __init__(self, job: dict[str, Any]) -> None:
        reason = f" ({job['reason']})" if job["reason"] else ""
        super().__init__(
            f"job {job['id']} ended as {job['state']}{reason} with exit code {exit_code_of(job)}",
            hint=f"its log: gjob log {job['id']}",
        )
        self.job = job


class Job:
    """A job of the daemon, by its id. Everything else is asked for when it is wanted."""

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
        """All that `gjob show --json` tells."""
        found: dict[str, Any] = http.get(http.job_path(self.id))["jobs"][0]
        return found

    @property
    def state(self) -> str:
        """Queued, Hold, Running, Finished, Failed, Cancelled or Timeout."""
        return str(self.info()["state"])

    @property
    def done(self) -> bool:
        return self.state in FINAL

    def wait(self, timeout: float | None = None) -> Job:
        """Return when it is over. Raises TimeoutError after `timeout` seconds; the job goes on then."""
        wait_for(self.id, timeout)
        return self

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """How it ended, once it succeeded. Raises JobFailed if it did not."""
        final = wait_for(self.id, timeout)
        if final["state"] != "Finished":
            raise JobFailed(final)
        return final

    def log(self) -> str:
        """What it has written so far."""
        path = self._log_path()
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def follow(self) -> Iterator[bytes]:
        """What it writes, as it comes, through all attempts, until it is over."""
        yield from follow_log(self.id, self._log_path())

    def cancel(self, *, now: bool = False) -> None:
        """End it: TERM, its grace time, KILL; `now` kills at once."""
        http.post("/jobs/cancel", {"jobs": [self.id], "now": now})

    def hold(self) -> None:
        http.post("/jobs/hold", {"jobs": [self.id]})

    def release(self) -> None:
        http.post("/jobs/release", {"jobs": [self.id]})

    def _log_path(self) -> str:
        place = http.get(http.job_path(self.id, "/log"))
        if os.geteuid() == 0 and place["uid"]:  # its path is theirs, and may lead anywhere
            raise Forbidden("root reads the logs of others with gjob log, which does it as them")
        return str(place["path"])


def submit(command: Command, **options: Any) -> Job:
    """Submit one job; options are those of `gbatch`: `submit("python train.py", gpus=1, time="2:00:00")`.

    A text is what `gbatch` takes as its one argument: a script, a line for bash, or a program. A list
    is a command, passed on untouched.
    """
    if several := [name for name in SEVERAL if options.get(name)]:
        raise UsageError(f"{several[0]} makes several jobs", hint="gflow.sweep returns all of them")
    (job,) = sweep(command, **options)
    return job


def sweep(command: Command, **options: Any) -> list[Job]:
    """Submit the jobs of a sweep: `sweep("python train.py --lr {lr}", param={"lr": [0.1, 0.01]})`."""
    return sent(description(command, options))


def sent(job: str) -> list[Job]:
    """The jobs that the daemon makes of a description."""
    return [Job(job["id"]) for job in http.parse_json(_answer(job, "/jobs"))["jobs"]]


def judged(job: str) -> None:
    """Ask whether the daemon would take a description now; its refusal if not."""
    _answer(job, "/jobs?dry-run")


def _answer(job: str, path: str) -> bytes:
    status, headers, content = _delivered(hot_path.submission(os.urandom(16).hex(), job), path)
    if status >= 400:
        raise http.refusal(headers, content, "application/json")
    return content


def _delivered(body: bytes, path: str) -> tuple[int, bytes, bytes]:
    """The answer to a submission. A daemon that is away may come back; its token makes asking again safe."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return hot_path.deliver(body, path, "application/json")
        except ConnectionError:
            if time.monotonic() > end:
                raise


def description(command: Command, options: dict[str, Any]) -> str:
    """The job's JSON."""
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
    """Jobs as `gqueue --json` lists them: those that are not over, or with `all` every one."""
    query = {"states": state, "users": user, "names": name, "projects": project}
    texts = {key: value if isinstance(value, str) else ",".join(value) for key, value in query.items()}
    found = http.get("/jobs", **texts, all="1" if all else "", limit=str(limit))
    listed: list[dict[str, Any]] = found["jobs"]
    return listed


def wait(jobs: Iterable[Job], timeout: float | None = None) -> list[dict[str, Any]]:
    """How these jobs ended, once all of them are over."""
    end = None if timeout is None else time.monotonic() + timeout
    return [wait_for(job.id, None if end is None else max(0.0, end - time.monotonic())) for job in jobs]
