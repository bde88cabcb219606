"""Answers of the event stream: events, its first message, and gaps."""

from __future__ import annotations

from typing import Literal

import msgspec

from gflow.core.model import AuditEntry
from gflow.wire.answers.jobs import JobView, ReportedProgress
from gflow.wire.encoding import JobId, key_label, rfc3339


class Happening(msgspec.Struct, kw_only=True):
    """One event. `job` as it is now, which may be later than the event."""

    id: int
    event: str
    at: str
    detail: str
    job_id: JobId | None
    job: JobView | None


class Connected(msgspec.Struct, kw_only=True):
    """The first event of a stream: what comes has higher ids than this."""

    event: Literal["connected"]
    version: str
    id: int


class Missed(msgspec.Struct, kw_only=True):
    """Events that are too long ago to be told again."""

    event: Literal["missed"]
    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")


class GpuReading(msgspec.Struct, kw_only=True):
    """What a GPU does now; null: not known."""

    index: int
    utilisation: int | None
    used_mib: int | None
    temperature: int | None
    power_w: float | None


class JobReading(msgspec.Struct):
    """The progress that a running job reported last."""

    id: JobId
    progress: ReportedProgress


class Readings(msgspec.Struct, kw_only=True):
    """Readings of GPUs and progress of running jobs. Sent when they changed, if the query asks for them."""

    event: Literal["readings"]
    gpus: list[GpuReading]
    jobs: list[JobReading]


def happening_view(number: int, name: str, line: AuditEntry, job: JobView | None) -> Happening:
    """One event. `job` is the current view, which may be newer than the event."""
    return Happening(
        id=number,
        event=name,
        at=rfc3339(line.at),
        detail=line.detail,
        job_id=None if line.key is None else key_label(line.key),
        job=job,
    )
