"""JSON encoding of answers: the encoder, job ids, and times as RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload

import msgspec

from gflow.core.ids import JobKey, label, number_of, task_of

encode = msgspec.json.Encoder().encode
# The id of a job: a number; for a task of an array a string, 42_3.
JobId = int | str


def key_label(key: int) -> JobId:
    """The id of a job by its key."""
    job = JobKey(key)
    return number_of(job) if task_of(job) is None else label(job)


@overload
def rfc3339(seconds: float) -> str: ...
@overload
def rfc3339(seconds: None) -> None: ...
def rfc3339(seconds: float | None) -> str | None:
    """A time in UTC, to the millisecond."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
