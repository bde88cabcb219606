"""Submit, list and wait for jobs from Python."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from gflow.client import hot_path, http
from gflow.client.request_builder import describe
from gflow.client.wait import wait_for
from gflow.errors import UsageError
from gflow.library.job import Job as Job
from gflow.library.job import JobFailed as JobFailed
from gflow.library.job import JobList, ListedJob, deliver, read_options
from gflow.library.job_sweep import Sweep
from gflow.library.submit_keywords import RedoKeywords, SubmitKeywords
from gflow.options.job_options import CAPTURE, JOB, SLURM

Command = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
# Options that make several jobs of one submission.
SEVERAL = ("param", "param_file")


def submit(command: Command, **options: Unpack[SubmitKeywords]) -> Job:
    """Submit one job; options are those of `gbatch`: `submit("python train.py", gpus=1, time="2:00:00")`.

    A string is used like the single argument of `gbatch`: a script, a line for bash, or a program. A list
    is a command and its arguments, passed on unchanged.
    """
    if several := [name for name in SEVERAL if options.get(name)]:
        raise UsageError(f"{several[0]} makes several jobs", hint="gflow.sweep returns all of them")
    (job,) = sweep(command, **options)
    return job


def sweep(command: Command, **options: Unpack[SubmitKeywords]) -> Sweep:
    """Submit the jobs of a sweep: `sweep("python train.py --lr {lr}", param={"lr": [0.1, 0.01]})`."""
    return submit_description(description(command, dict[str, Any](options)))


def submit_description(job: str) -> Sweep:
    """Submit a description (JSON); returns the jobs that the daemon creates."""
    return Sweep.of(http.parse_json(_answer(job, "/jobs"))["jobs"])


def check_description(job: str) -> None:
    """Dry run: raise the error with which the daemon would refuse a description (JSON)."""
    _answer(job, "/jobs?dry-run")


def _answer(job: str, path: str) -> bytes:
    return deliver(hot_path.submission(os.urandom(16).hex(), job), path)


def description(command: Command, options: Mapping[str, Any]) -> str:
    """The description of a job as JSON."""
    values = read_options(options, JOB + CAPTURE + SLURM)
    words = [command] if isinstance(command, (str, os.PathLike)) else list(command)
    if not words and "wrap" not in values:
        raise UsageError("there is no command", hint='gflow.submit(["python", "train.py"])')
    return describe(values, list(map(_word_of, words)))


def _word_of(word: object) -> str:
    if isinstance(word, (str, os.PathLike)):
        return os.fspath(word)
    raise UsageError(f"a command consists of texts and paths, not of {word!r:.60}", hint="write it as a text")


def jobs(
    *,
    state: str | Iterable[str] = (),
    user: str | Iterable[str] = (),
    name: str | Iterable[str] = (),
    project: str | Iterable[str] = (),
    all: bool = False,
    limit: int = 0,
) -> JobList[ListedJob]:
    """Jobs as in `gqueue --json`: active jobs, or with `all` also ended ones. Each is also a dictionary."""
    query = {"states": state, "users": user, "names": name, "projects": project}
    texts = {key: value if isinstance(value, str) else ",".join(value) for key, value in query.items()}
    found = http.get("/jobs", **texts, all="1" if all else "", limit=str(limit))
    return JobList(map(ListedJob, found["jobs"]))


def gpu_memory() -> list[dict[str, Any]]:
    """The memory of each GPU and the processes on it, as in `gflow memory --json`."""
    found: list[dict[str, Any]] = http.get("/gpus/memory")["gpus"]
    return found


def wait(
    jobs: Job | Iterable[Job | int | str], timeout: float | None = None, *, progress: bool = False
) -> JobList[ListedJob]:
    """Wait for the end of all these jobs, or ids of jobs; returns their final states.

    With `progress`, a line on the terminal or a table in the notebook shows how many have ended.
    """
    ids = list(map(_id_of, [jobs] if isinstance(jobs, Job | int | str) else jobs))
    if progress:
        from gflow.library.wait_display import wait_showing

        return JobList(map(ListedJob, wait_showing(ids, timeout)))
    end = None if timeout is None else time.monotonic() + timeout
    found = (wait_for(job, None if end is None else max(0.0, end - time.monotonic())) for job in ids)
    return JobList(map(ListedJob, found))


def _id_of(job: object) -> str:
    if isinstance(job, Job):
        return job.id
    if isinstance(job, int | str) and job is not True and job is not False:
        return str(job)
    raise UsageError(f"{job!r:.60} is no job", hint="pass what gflow.submit returned, or ids: 42, '42_3'")


def spell_keywords(function: Callable[..., Any], keywords: type = SubmitKeywords) -> None:
    """Put the options into the signature, from which IPython completes keywords. It does not read types."""
    import inspect

    shown = inspect.signature(function)
    first = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in keywords.__annotations__.items()
    ]
    function.__signature__ = shown.replace(parameters=[*first, *named])  # type: ignore[attr-defined]


if "IPython" in sys.modules:
    for with_options in (submit, sweep):
        spell_keywords(with_options)
    for with_changes in (Job.redo, Sweep.redo_failed):
        spell_keywords(with_changes, RedoKeywords)
