"""Query types of the API, one per route.

An unknown name is refused: a misspelt filter must not list everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal, TypeVar

import msgspec

from gflow.errors import UsageError, unknown

# Later times cannot be formatted in every time zone.
LATEST = 250_000_000_000


class Query(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Base of query types. Values are texts; a flag is on if it is present and not 0."""


class JobsQuery(Query, frozen=True):
    """`GET /jobs`: filters (comma-separated lists), and the form of the listing."""

    all: bool = False
    completed: bool = False
    states: str = ""
    jobs: str = ""
    names: str = ""
    users: str = ""
    projects: str = ""
    targets: str = ""
    partitions: str = ""
    since: str = ""
    sort: str = ""
    limit: str = ""
    offset: str = ""
    # form: table, group, tree, csv, yaml, json, or results, results-csv, results-json (`gjob results`), or
    # rows: JSON with one row for each group and array, ordered by id. after: where a page of rows begins.
    # format: the columns, for forms that have columns.
    form: str = ""
    after: str = ""
    format: str = ""
    width: str = ""
    color: bool = False
    # collapse: one line for each group (a sweep) and array. expand: a line for each job. Without either, a
    # table of all jobs on a terminal is collapsed.
    collapse: bool = False
    expand: bool = False


class ClusterJobsQuery(Query, frozen=True):
    """`GET /targets/{target}/jobs`. others: without the jobs of this daemon, which `GET /jobs` lists."""

    others: bool = False
    width: str = ""
    color: bool = False


class PartitionsQuery(Query, frozen=True):
    """`GET /targets/{target}/partitions`."""

    width: str = ""
    color: bool = False


class ShowQuery(Query, frozen=True):
    """`GET /jobs/{job}` and `/groups/{group}`: the metric that ranks the jobs of a group, the terminal.

    `tasks=0`: an array without its tasks, of which there may be thousands.
    """

    metric: str = "loss"
    highest: bool = False
    tasks: bool = True
    width: str = ""
    color: bool = False


class StatsQuery(Query, frozen=True):
    """`GET /stats`: the user (default: the caller), and the start of the period."""

    user: str = ""
    all: bool = False
    predictions: bool = False
    since: str = ""
    form: str = ""
    width: str = ""
    color: bool = False


class UsageDaysQuery(Query, frozen=True):
    """`GET /stats/days`: the user (default: the caller), and the first day (default: 14 days ago)."""

    user: str = ""
    all: bool = False
    since: str = ""
    form: str = ""
    width: str = ""
    color: bool = False


class InfoQuery(Query, frozen=True):
    """`GET /info`: all details, or a line for each GPU on a terminal of this width."""

    long: bool = False
    width: str = ""
    color: bool = False


class GpuMemoryQuery(Query, frozen=True):
    """`GET /gpus/memory`: the order of processes (default: by memory), and the width of the terminal."""

    sort: Literal["memory", "pid", "user", "job", ""] = ""
    width: str = ""
    color: bool = False


class OverviewQuery(Query, frozen=True):
    """`GET /overview`: the width of the terminal, and whether it has colours; `lists`: also lists of the jobs
    of all users, with about so many lines each."""

    width: str = ""
    color: bool = False
    lists: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0


class EventsQuery(Query, frozen=True):
    """`GET /events`: event names and jobs (comma-separated), the last id seen, whether to wait for more.

    `readings`: also send readings of GPUs and progress of jobs when they change, at most every two seconds.
    """

    events: str = ""
    job: str = ""
    after: str = ""
    follow: bool = True
    readings: bool = False


class UsageQuery(Query, frozen=True):
    """`GET /jobs/{job}/usage`."""

    csv: bool = False


class StartsQuery(Query, frozen=True):
    """`GET /starts`: how many at most."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


# Most bytes of a log in one answer.
MOST_OUTPUT = 4 << 20


class OutputQuery(Query, frozen=True):
    """`GET /jobs/{job}/output`: the first byte (below 0: from the end), and how many at most.

    `lines`: also count the number of the first line, if it is within the first 64 MiB.
    """

    offset: Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)] = -(256 << 10)
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_OUTPUT)] = 256 << 10
    lines: bool = False


class SearchQuery(Query, frozen=True):
    """`GET /jobs/{job}/output/search`: the text to find (empty: lines that look like errors).

    `offset`, `line`: where the search begins, as an earlier answer had them in `next`. `limit`: how many
    lines at most. One request searches about 64 MiB.
    """

    find: Annotated[str, msgspec.Meta(max_length=500)] = ""
    offset: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0
    line: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)] = 1
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000


class OutputStreamQuery(Query, frozen=True):
    """`GET /jobs/{job}/output/stream`: the first byte."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0


class GpuHistoryQuery(Query, frozen=True):
    """`GET /gpus/history`: how many hours back, and one GPU instead of all."""

    hours: Annotated[float, msgspec.Meta(gt=0, le=24 * 366)] = 24.0
    gpu: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None


class GpuEventsQuery(Query, frozen=True):
    """`GET /gpus/events`: how many hours back."""

    hours: Annotated[float, msgspec.Meta(gt=0, le=24 * 366)] = 24.0


class ReservationsQuery(Query, frozen=True):
    """`GET /reservations`: filters; `timeline`: bars from `begin` to `end` (seconds since 1970)."""

    user: str = ""
    status: Literal["pending", "active", "completed", "cancelled", ""] = ""
    active: bool = False
    timeline: bool = False
    begin: Annotated[float, msgspec.Meta(ge=0, le=LATEST)] | None = msgspec.field(name="from", default=None)
    end: Annotated[float, msgspec.Meta(ge=0, le=LATEST)] | None = msgspec.field(name="to", default=None)


class SubmitQuery(Query, frozen=True):
    """`POST /jobs` and `/jobs/redo`: the form of the answer, or a dry run."""

    dry_run: bool = False
    # In a dry run: when the first job would start.
    start: bool = False
    parsable: bool = False
    named: bool = False


Q = TypeVar("Q", bound=Query)


def read_query(given: Mapping[str, str], into: type[Q]) -> Q:
    """Decode a query. Raises UsageError with one sentence if it is not valid."""
    flags = _flags_by_name(into)
    for name in given:
        if name not in flags:
            raise unknown("name in the query", name, flags)
    words = {name: value or "1" if flags[name] else value for name, value in given.items()}
    try:
        return msgspec.convert(words, into, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the query is not valid: {error}", hint="a flag is 1 or 0") from error


@cache
def _flags_by_name(query: type[Query]) -> dict[str, bool]:
    """The names of a query, and whether each is a flag. Cached: msgspec evaluates all annotations for it."""
    return {field.encode_name: field.type is bool for field in msgspec.structs.fields(query)}
