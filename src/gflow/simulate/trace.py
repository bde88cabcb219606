"""Read traces: CSV files, by a mapping of columns, Standard Workload Format, and databases of gflow."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gflow.core.model import Spec
from gflow.errors import Refused, UsageError, did_you_mean

# Meanings of columns. `duration` may be omitted if `start` and `end` are given.
MEANINGS = (
    "submit", "duration", "start", "end", "gpus", "user", "name", "limit", "priority", "preemptible",
)  # fmt: skip
TIMES = ("submit", "duration", "start", "end", "limit")
USUAL_PRIORITY = Spec(command=(), cwd="").priority
# Units of times, in seconds: `duration=COLUMN:ms`.
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# Values of the column `preemptible` that mean yes, unless one is given: `preemptible=COLUMN:VALUE`.
YES = ("1", "true", "yes")
# Column mappings of known trace formats. Without --map, the first whose columns all exist is used.
KNOWN: tuple[dict[str, str], ...] = (
    {"submit": "timestamp", "duration": "duration", "gpus": "num_gpus"},  # Philly, as AdaptDL has it
    {
        "submit": "creation_time",
        "start": "scheduled_time",
        "end": "deletion_time",
        "gpus": "num_gpu",
    },  # openb
    {"submit": "submit_time", "duration": "duration", "gpus": "gpu_num", "user": "user"},  # Helios, Acme
    {"submit": "Submit", "duration": "Elapsed", "gpus": "AllocTRES", "user": "User", "limit": "Timelimit"},
    {"submit": "Submit", "duration": "Elapsed", "gpus": "ReqTRES", "user": "User", "limit": "Timelimit"},
)
# Columns of the Standard Workload Format (.swf); the file has no names. A processor counts as a GPU.
SWF = (
    "job", "submit", "wait", "duration", "processors", "cpu_time", "memory", "gpus", "limit",
    "asked_memory", "status", "user", "group", "name", "queue", "partition", "preceding", "think_time",
)  # fmt: skip
SWF_MEANINGS = {name: name for name in ("submit", "duration", "gpus", "limit", "user", "name")}
_GPUS = re.compile(r"gpu(?::[^=,:]+)?[=:](\d+)")
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


class Column(NamedTuple):
    """A column, and the unit of its times, or the value in it that means yes."""

    name: str
    suffix: str = ""


class Entry(NamedTuple):
    """One job of a trace. Times are seconds; a limit of 0 means none."""

    submit: float
    duration: float
    gpus: int
    user: str = ""
    name: str = ""
    limit: int = 0
    priority: int = USUAL_PRIORITY
    preemptible: bool = False


def read_trace(path: Path, mapping: Mapping[str, str], where: Mapping[str, str]) -> list[Entry]:
    """Read the jobs of a trace in order of submission, without those that never ran or had no GPU."""
    try:
        with path.open("rb") as file:
            is_database = file.read(16) == b"SQLite format 3\0"
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    if is_database:
        return sorted(_read_database(path))
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = _read_swf(file) if path.suffix == ".swf" else _read_columns(file)
            return sorted(_read_rows(*rows, mapping, where))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"{path} is not a CSV file: {error}") from error


# The names of the columns, and the rows with their line numbers.
Rows = tuple[list[str], Iterator[tuple[int, dict[str, str]]]]


def _read_columns(lines: Iterable[str]) -> Rows:
    """The rows of a CSV file, whose first line has the names of the columns."""
    first = next(lines := iter(lines), "")
    delimiter = max(",|\t;", key=first.count)
    columns = next(csv.reader([first], delimiter=delimiter), [])
    return columns, enumerate(csv.DictReader(lines, columns, delimiter=delimiter), 2)


def _read_swf(lines: Iterable[str]) -> Rows:
    """The rows of a file in the Standard Workload Format; -1 there means that a value is not known."""
    fields = (
        (number, line.split()) for number, line in enumerate(lines, 1) if line.strip()[:1] not in ("", ";")
    )
    return list(SWF), ((number, _name_fields(number, line)) for number, line in fields)


def _name_fields(number: int, fields: list[str]) -> dict[str, str]:
    if len(fields) != len(SWF):
        raise Refused(f"line {number} of the trace has {len(fields)} fields, and {len(SWF)} are expected")
    row = dict(zip(SWF, fields, strict=True))
    if row["gpus"] == "-1":
        row["gpus"] = row["processors"]
    for name in ("limit", "user", "name"):
        row[name] = "" if row[name] == "-1" else row[name]
    return row


def _read_rows(
    columns: list[str],
    rows: Iterable[tuple[int, dict[str, str]]],
    mapping: Mapping[str, str],
    where: Mapping[str, str],
) -> Iterator[Entry]:
    chosen = dict(mapping) or (SWF_MEANINGS if columns == list(SWF) else _detect_format(columns))
    meant = _find_columns(chosen, where, columns)
    for number, row in rows:
        if all(row[column] == value for column, value in where.items()):
            try:
                entry = _parse_entry(row, meant)
            except (ValueError, TypeError, OverflowError) as error:
                raise Refused(f"line {number} of the trace cannot be read: {error}") from error
            if entry is not None:
                yield entry


def _detect_format(columns: list[str]) -> dict[str, str]:
    for known in KNOWN:
        if set(known.values()) <= set(columns):
            optional = {"user": "user", "name": "JobName"}
            return {**{m: c for m, c in optional.items() if c in columns}, **known}
    raise UsageError(
        f"the columns of this trace are {', '.join(columns)}: which mean what?",
        hint="--map submit=COLUMN,duration=COLUMN,gpus=COLUMN",
    )


def _find_columns(
    chosen: Mapping[str, str], where: Mapping[str, str], columns: list[str]
) -> dict[str, Column]:
    """The column of each meaning. Raises UsageError if one does not exist or is missing."""
    found = {}
    for meaning, text in chosen.items():
        if meaning not in MEANINGS:
            hint = did_you_mean(meaning, MEANINGS, otherwise="a column can mean " + ", ".join(MEANINGS))
            raise UsageError(f"--map: there is no {meaning!a}", hint=hint)
        found[meaning] = _parse_column(meaning, text, columns)
    for column in (*(one.name for one in found.values()), *where):
        if column not in columns:
            hint = did_you_mean(column, columns, otherwise="columns: " + ", ".join(columns))
            raise UsageError(f"the trace has no column {column!a}", hint=hint)
    if "submit" not in chosen or not ("duration" in chosen or {"start", "end"} <= chosen.keys()):
        raise UsageError("--map needs submit, and duration or start and end")
    return found


def _parse_column(meaning: str, text: str, columns: list[str]) -> Column:
    """Parse `COLUMN`, `COLUMN:UNIT` of a time, or `preemptible=COLUMN:VALUE`."""
    name, colon, suffix = text.rpartition(":")
    if text in columns or not colon or (meaning not in TIMES and meaning != "preemptible"):
        return Column(text)
    if meaning in TIMES and suffix not in UNITS:
        raise UsageError(f"--map: there is no unit {suffix!a}", hint="units: " + ", ".join(UNITS))
    return Column(name, suffix)


def _parse_entry(row: Mapping[str, str], meant: Mapping[str, Column]) -> Entry | None:
    value = {meaning: row[column.name].strip() for meaning, column in meant.items()}
    gpus = parse_gpus(value["gpus"]) if "gpus" in value else 1
    if "duration" in value:
        duration = _seconds(value["duration"], meant["duration"], parse_duration)
    else:
        duration = (
            _seconds(value["end"], meant["end"], parse_time)
            - _seconds(value["start"], meant["start"], parse_time)
            if value["start"] and value["end"]
            else -1.0
        )
    if duration <= 0 or gpus <= 0:
        return None
    limit = value.get("limit", "")
    limit_s = int(_seconds(limit, meant["limit"], parse_duration)) if limit and limit[0].isdigit() else 0
    submit = _seconds(value["submit"], meant["submit"], parse_time)
    priority = int(value.get("priority") or USUAL_PRIORITY)
    yes = (meant["preemptible"].suffix,) if "preemptible" in meant and meant["preemptible"].suffix else YES
    preemptible = value.get("preemptible", "").lower() in [one.lower() for one in yes]
    user, name = value.get("user", ""), value.get("name", "")
    return Entry(submit, duration, gpus, user, name, limit_s, priority, preemptible)


def _seconds(text: str, column: Column, parse: Callable[[str], float]) -> float:
    """A time of a column with a unit, or in the form that `parse` reads."""
    return float(text) * UNITS[column.suffix] if column.suffix else parse(text)


def parse_time(text: str) -> float:
    """Parse a time: seconds, or ISO 8601. Without a time zone, UTC: only differences matter."""
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def parse_duration(text: str) -> float:
    """Parse a duration: seconds, or Slurm's [days-][hours:]minutes:seconds."""
    found = _CLOCK.fullmatch(text)
    if not found:
        return float(text or "nan")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_gpus(text: str) -> int:
    """Parse a number of GPUs: `2`, `2.0`, or Slurm's resources with `gres/gpu=2` or `gpu:a100:2`."""
    if not text:
        return 0
    try:
        return round(float(text))
    except ValueError:
        found = _GPUS.findall(text)
        return int(found[0]) if found else 0


def _read_database(path: Path) -> Iterator[Entry]:
    """Read the jobs that ran on GPUs from a database of gflow."""
    from gflow.core.queries.job_filter import Filter
    from gflow.core.state.runtime_estimates import what_of
    from gflow.store.reader import Reader

    reader = Reader(path)
    try:
        for row in reader.page(Filter(), -1, 0, newest=False):
            job = reader.job(row)
            if job.ran_s and not job.is_array and job.spec.gpus:
                what, limit = what_of(job.spec), job.spec.time_limit_s
                yield Entry(
                    job.submitted_at,
                    job.ran_s,
                    job.spec.gpus,
                    job.user,
                    what,
                    limit,
                    job.spec.priority,
                    job.spec.preemptible,
                )
    finally:
        reader.close()
