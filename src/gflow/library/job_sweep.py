"""The jobs of a sweep as one: wait for them, compare their results, redo what failed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any, Unpack

from gflow.client import http
from gflow.job_states import FAILED_NAMES, JobState
from gflow.library.job import Job, JobList, ListedJob, redo_jobs
from gflow.library.job_table import ROWS, job_table
from gflow.library.submit_keywords import RedoKeywords
from gflow.result_columns import FIRST, LAST, result_columns

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)
# `007` is a text.
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*|(?=\.[0-9]))(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_BEST: dict[str, Callable[..., Any]] = {"min": min, "max": max}


class Sweep(JobList[Job]):
    """A list of the jobs of a group. `Sweep(116)` or `Sweep("g116")` is group 116."""

    def __init__(self, id: int | str) -> None:
        # The name of all jobs where jobs may be named: `g116`; of a job without a group, its id.
        self.id = "g" + str(id).removeprefix("g")
        super().__init__(Job(row["id"]) for row in self._results())

    @classmethod
    def of(cls, jobs: Sequence[dict[str, Any]]) -> Sweep:
        """The sweep of these jobs, which were submitted together, by their fields."""
        sweep = cls.__new__(cls)
        list.__init__(sweep, (Job(job["id"]) for job in jobs))
        group = jobs[0]["group_id"]
        sweep.id = f"g{group}" if group else str(jobs[0]["id"])
        return sweep

    def __repr__(self) -> str:
        return f"Sweep({self.id!r}, {len(self)} job{'s' if len(self) > 1 else ''})"

    def _repr_html_(self) -> str:
        found = self._list(limit=str(ROWS))
        return job_table(found["jobs"], found["total"])

    @property
    def name(self) -> str:
        """The name of the jobs; a template such as `run_{lr}` if each has another name."""
        first = self[0].info()
        return str(first["name_template"] or first["name"])

    # ------------------------------------------------------------ waiting

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> Sweep:
        """Wait for the end of all jobs. Raises TimeoutError after `timeout` seconds; the jobs continue.

        With `progress`, a line on the terminal or a table in the notebook shows how many have ended.
        """
        if progress:
            from gflow.library.wait_display import wait_showing

            for job, final in zip(self, wait_showing([job.id for job in self], timeout), strict=True):
                job._keep(final)
            return self
        end = None if timeout is None else time.monotonic() + timeout
        for job in self:
            job.wait(None if end is None else max(0.0, end - time.monotonic()))
        return self

    # ------------------------------------------------------------ results

    def results(self) -> Any:
        """The rows of `rows()`: a DataFrame if pandas is installed, else the list itself."""
        try:
            import pandas
        except ImportError:
            return self.rows()
        return pandas.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each job with the columns of `gjob results --csv`; None: no value.

        The values of a parameter are numbers if all of them are.
        """
        found = self._results()
        parameters, metrics = result_columns(
            dict.fromkeys(name for row in found for name in row["parameters"]),
            dict.fromkeys(name for row in found for name in row["metrics"]),
        )
        read = {name: _reader(row["parameters"].get(name) for row in found) for name in parameters}
        return [
            {name: row[name] for name in FIRST}
            | {column: read[name](row["parameters"].get(name)) for name, column in parameters.items()}
            | {column: row["metrics"].get(name) for name, column in metrics.items()}
            | {name: row[name] for name in LAST}
            for row in found
        ]

    def best(self, metric: str = "loss", mode: str = "min") -> Job:
        """The job with the smallest (`mode="max"`: largest) last report of a metric.

        Jobs that failed, timed out or were cancelled do not count. Raises ValueError if no job reported it.
        """
        if mode not in _BEST:
            raise ValueError(f"mode is 'min' or 'max', not {mode!r}")
        failed = (*FAILED_NAMES, JobState.CANCELLED.value)
        found = [row for row in self._results() if metric in row["metrics"] and row["state"] not in failed]
        if not found:
            raise ValueError(f"no job of {self.id} that runs or finished has reported {metric!r}")
        return Job(_BEST[mode](found, key=lambda row: row["metrics"][metric])["id"])

    @property
    def failed(self) -> JobList[ListedJob]:
        """The jobs that ended as Failed or Timeout."""
        return JobList(map(ListedJob, self._list(states=",".join(FAILED_NAMES), limit="0")["jobs"]))

    def _results(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._list(form="results-json", limit="0")["results"]
        return found

    def _list(self, **query: str) -> Any:
        return http.get("/jobs", jobs=self.id, all="1", **query)

    # ------------------------------------------------------------ changes

    def redo_failed(self, **options: Unpack[RedoKeywords]) -> Sweep:
        """Submit the jobs that ended as Failed or Timeout again, with other options.

        Returns the new jobs. Raises gflow.Refused if none failed.
        """
        return Sweep.of(redo_jobs(self.id, options, failed=True))

    def cancel(self, *, now: bool = False) -> None:
        """Cancel all jobs that have not ended: TERM, the grace time, KILL; `now` kills them immediately."""
        http.post("/jobs/cancel", {"jobs": [self.id], "now": now})


def _reader(texts: Iterable[str | None]) -> Callable[[str | None], Any]:
    """The type of these values of a parameter: int, float, or else text."""
    given = [text for text in texts if text is not None]
    if all(map(_INTEGER.fullmatch, given)):
        return lambda text: None if text is None else int(text)
    if all(_FLOAT.fullmatch(text) and isfinite(float(text)) for text in given):
        return lambda text: None if text is None else float(text)
    return lambda text: text
