"""One job for Python programs: its fields, its log, and what can be done with it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, SupportsIndex, TypeVar, Unpack, overload

from gflow.client import hot_path, http
from gflow.client.capture import resolve
from gflow.client.jobfile import read_named
from gflow.client.logs import chunks, follow_log, start_of_last
from gflow.client.retry import PATIENCE_S
from gflow.client.wait import exit_code_of, wait_for
from gflow.errors import Forbidden, GflowError
from gflow.job_states import FINAL_NAMES
from gflow.library.job_table import job_table, metrics_of
from gflow.library.submit_keywords import RedoKeywords
from gflow.options.job_options import Option
from gflow.options.update import REDOABLE


class JobFailed(GflowError):
    """A job did not succeed. `job` is its final state."""

    def __init__(self, job: dict[str, Any]) -> None:
        has_more = job["reason"] and not job["reason"].startswith("ExitCode")
        reason = f" ({job['reason']})" if has_more else ""
        super().__init__(
            f"job {job['id']} ended as {job['state']}{reason} with exit code {exit_code_of(job)}",
            hint=f"its log: gjob log {job['id']}",
        )
        self.job = job


class Job:
    """A job, by its id. Attributes and items are requested from the daemon until the job has ended."""

    def __init__(self, id: int | str) -> None:
        self.id = str(id)
        # The fields of an ended job, which no longer change.
        self._final: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __getitem__(self, field: str) -> Any:
        """A field of `info()`: `job["submitted_at"]`."""
        return self.info()[field]

    def _repr_html_(self) -> str:
        return job_table([self.info()])

    def info(self) -> dict[str, Any]:
        """All fields of `gjob show --json`."""
        if self._final is not None:
            return dict(self._final)
        return self._keep(http.get(http.job_path(self.id))["jobs"][0])

    def _keep(self, found: dict[str, Any]) -> dict[str, Any]:
        if found["state"] in FINAL_NAMES:
            self._final = dict(found)
        return found

    # ------------------------------------------------------------ fields

    @property
    def state(self) -> str:
        """The name of the state, as in `gqueue --help`: Queued, Running, Finished, …"""
        return str(self.info()["state"])

    @property
    def done(self) -> bool:
        return self.state in FINAL_NAMES

    @property
    def name(self) -> str:
        return str(self.info()["name"])

    @property
    def reason(self) -> str | None:
        """Why the job waits, or how it ended: `Resources`, `ExitCode:1`."""
        found: str | None = self.info()["reason"]
        return found

    @property
    def exit_code(self) -> int | None:
        """The exit code of the job's command; None: it has none, or a signal ended it."""
        found: int | None = self.info()["exit_code"]
        return found

    @property
    def gpus(self) -> int:
        """The number of GPUs that the job asks for."""
        return int(self.info()["gpus"])

    @property
    def gpu_ids(self) -> list[int]:
        """The indices of the GPUs that the job has or had."""
        return list(self.info()["gpu_ids"])

    @property
    def params(self) -> dict[str, str]:
        """The parameters of the job in its sweep."""
        return dict(self.info()["parameters"])

    @property
    def progress(self) -> dict[str, Any] | None:
        """The last progress report: step, steps, percent, epoch, left_s, …; None: the job sent none."""
        found: dict[str, Any] | None = self.info()["progress"]
        return found

    @property
    def metrics(self) -> dict[str, float]:
        """The measurements of the last progress report: `{"loss": 0.31}`."""
        return metrics_of(self.info())

    # ------------------------------------------------------------ waiting

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> Job:
        """Wait for the end of the job. Raises TimeoutError after `timeout` seconds; the job continues.

        With `progress`, a line on the terminal or a table in the notebook shows how far it is.
        """
        self._wait(timeout, progress)
        return self

    def result(self, timeout: float | None = None, *, progress: bool = False) -> dict[str, Any]:
        """Wait for the job to succeed; returns its final state. Raises JobFailed if it did not succeed."""
        final = self._wait(timeout, progress)
        if final["state"] != "Finished":
            raise JobFailed(final)
        return final

    def _wait(self, timeout: float | None, progress: bool) -> dict[str, Any]:
        if not progress:
            return self._keep(wait_for(self.id, timeout))
        from gflow.library.wait_display import wait_showing

        (final,) = wait_showing([self.id], timeout)
        return self._keep(final)

    # ------------------------------------------------------------ output

    def log(self) -> str:
        """The log of the job so far."""
        return self._read_log(None)

    def tail(self, lines: int = 10) -> str:
        """The last lines of the log so far."""
        return self._read_log(lines)

    def follow(self) -> Iterator[bytes]:
        """Yield the log as it is written, of all attempts, until the job ends."""
        yield from follow_log(self.id, self._log_path())

    def history(self) -> list[dict[str, Any]]:
        """The audit log of the job, oldest first, as in `gjob history --json`: at, event, detail, by."""
        found: list[dict[str, Any]] = http.get(http.job_path(self.id, "/history"))["events"]
        return found

    def profile(
        self, *, steps: int = 5, memory: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        """Record the next steps of a running `gflow.train` run; returns what `gjob profile --json` prints.

        `memory`: also a snapshot of the CUDA allocator. `timeout`: seconds without a step before it gives up.
        """
        from gflow.client.profile_trace import profile_view
        from gflow.client.run_profile import PATIENCE_S, make_profile

        place = http.get(http.job_path(self.id, "/profile"))
        if os.geteuid() == 0 and place["uid"]:  # the user controls the path, which may be a link
            raise Forbidden("root must use gjob profile for other users' jobs, which acts as their owner")
        patience_s = PATIENCE_S if timeout is None else timeout
        return profile_view(make_profile(place, steps=steps, memory=memory, patience_s=patience_s))

    def diagnosis(self) -> dict[str, Any]:
        """What `gjob why --json` prints: why the job waits (blockers, start), whether it is slow while it
        runs (verdict, findings), or why it ended (findings with cause, advice and evidence, last_lines).
        """
        from gflow.client.job_explanation import explain_job

        return explain_job(self.id)

    def _read_log(self, lines: int | None) -> str:
        path = self._log_path()
        if not os.path.exists(path):
            return ""
        with open(path, "rb") as file:
            start = 0 if lines is None else start_of_last(file.fileno(), lines)
            return b"".join(chunks(file, start)).decode(errors="replace")

    def _log_path(self) -> str:
        place = http.get(http.job_path(self.id, "/log"))
        if os.geteuid() == 0 and place["uid"]:  # the user controls the path, which may be a link
            raise Forbidden("root must read other users' logs with gjob log, which reads them as their owner")
        return str(place["path"])

    # ------------------------------------------------------------ changes

    def cancel(self, *, now: bool = False) -> None:
        """Cancel the job: TERM, its grace time, KILL; `now` kills it immediately."""
        http.post("/jobs/cancel", {"jobs": [self.id], "now": now})

    def signal(self, name: str | int, *, batch: bool = False) -> None:
        """Send a signal to the running job, without ending it: `job.signal("USR1")`.

        With `batch` only the job's first process gets it.
        """
        http.post("/jobs/signal", {"jobs": [self.id], "signal": name, "batch": batch})

    def hold(self) -> None:
        http.post("/jobs/hold", {"jobs": [self.id]})

    def release(self) -> None:
        http.post("/jobs/release", {"jobs": [self.id]})

    def redo(
        self, *, cascade: bool = False, clear_deps: bool = False, **options: Unpack[RedoKeywords]
    ) -> Job:
        """Submit the job again as a new job, with other options: `job.redo(memory="32G")`.

        None resets an option. `cascade`: also the jobs that were cancelled because this one failed.
        """
        return Job(redo_jobs(self.id, options, cascade=cascade, clear_deps=clear_deps)[0]["id"])


class ListedJob(Job, dict[str, Any]):
    """A job of a listing, also a dictionary. Its items are as listed, its attributes are current."""

    def __init__(self, fields: dict[str, Any]) -> None:
        Job.__init__(self, fields["id"])
        dict.__init__(self, fields)
        self._keep(fields)

    def __repr__(self) -> str:
        return f"Job({self.id!r}, name={self['name']!r}, state={self['state']!r})"

    def __eq__(self, other: object) -> bool:
        return Job.__eq__(self, other) if isinstance(other, Job) else dict.__eq__(self, other)

    __hash__ = Job.__hash__  # type: ignore[assignment]  # dict has none
    __getitem__ = dict.__getitem__

    def _repr_html_(self) -> str:
        return job_table([self])


J = TypeVar("J", bound=Job)


class JobList(list[J]):
    """A list of jobs, which notebooks show as a table."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> J: ...
    @overload
    def __getitem__(self, at: slice) -> JobList[J]: ...
    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return JobList(found) if isinstance(at, slice) else found

    def _repr_html_(self) -> str:
        return job_table([job if isinstance(job, ListedJob) else job.info() for job in self])


def redo_jobs(jobs: str, options: Mapping[str, Any], **flags: bool) -> list[dict[str, Any]]:
    """Submit these jobs again; returns the new jobs. `flags`: further fields of the request."""
    reset = {name.replace("_", "-"): None for name, value in options.items() if value is None}
    changed = resolve(read_options(options, REDOABLE)) | reset
    body = {"job": jobs, "token": os.urandom(16).hex(), "options": changed, **flags}
    found: list[dict[str, Any]] = http.parse_json(deliver(hot_path.dumps(body).encode(), "/jobs/redo"))[
        "jobs"
    ]
    return found


def read_options(options: Mapping[str, Any], table: tuple[Option, ...]) -> dict[str, Any]:
    """Keyword arguments as the values of options; None: not given. A Job stands for its id."""
    given = {name: _plain(value) for name, value in options.items() if value is not None}
    return read_named(given, table)


def _plain(value: Any) -> Any:
    if isinstance(value, Job):
        return value.id
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def deliver(body: bytes, path: str) -> bytes:
    """Send a submission, with retries while the daemon is unreachable. Its token makes them idempotent."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            status, headers, content = hot_path.deliver(body, path, "application/json")
            break
        except ConnectionError:
            if time.monotonic() > end:
                raise
    if status >= 400:
        raise http.refusal(headers, content, "application/json")
    return content
