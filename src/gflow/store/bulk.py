"""Durable records of unfinished bulk work.

A staged submission is rolled back: its jobs are hidden until it is closed, and the next daemon deletes them.
A bulk change (an intent) is rolled forward: the next daemon finishes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from gflow.core.ids import TASK_BITS, JobKey, job_key
from gflow.errors import StoreError

# Difference between the keys of consecutive jobs.
STEP = 1 << TASK_BITS
# A run of keys: (first key, count, distance).
Run = tuple[int, int, int]


class OpenSubmission(msgspec.Struct, frozen=True, tag="submission"):
    """A staged submission. `closed`: all of its jobs are stored."""

    first: int
    count: int
    uid: int
    origin: str
    closed: bool = False

    @property
    def span(self) -> tuple[JobKey, JobKey]:
        """Its first key and its last."""
        return job_key(self.first), job_key(self.first + self.count - 1)


class Intent(msgspec.Struct, frozen=True, tag="intent"):
    """A bulk change: the kind of event, its fields, and the jobs."""

    kind: str
    uid: int
    governs: bool
    origin: str
    keys: tuple[Run, ...]
    fields: dict[str, Any] = {}
    # How many of the jobs have been changed.
    done: int = 0


Bulk = OpenSubmission | Intent
encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Bulk).decode


def bulk_of(number: int, text: str, done: int = 0) -> Bulk:
    """Decode a row of the table `bulk`."""
    try:
        found: Bulk = _decode(text)
        return advanced(found, done)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the record {number} of unfinished work in the database is damaged") from error


def advanced(bulk: Bulk, done: int) -> Bulk:
    """A copy of the record with this progress."""
    return msgspec.structs.replace(bulk, done=done) if done and isinstance(bulk, Intent) else bulk


def runs_of(keys: Iterable[JobKey]) -> tuple[Run, ...]:
    """Encode keys as runs, in order."""
    runs: list[Run] = []
    first = count = step = 0
    for key in keys:
        if count == 1 and key - first in (1, STEP):
            step = key - first
        if count and key == first + count * step:
            count += 1
            continue
        if count:
            runs.append((first, count, step or STEP))
        first, count, step = key, 1, 0
    if count:
        runs.append((first, count, step or STEP))
    return tuple(runs)


def keys_of(runs: Iterable[Run]) -> Iterator[JobKey]:
    """Decode the keys from runs."""
    for first, count, step in runs:
        yield from map(JobKey, range(first, first + count * step, step))
