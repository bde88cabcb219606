"""Job keys: one integer for a job or for one task of an array.

Job 42 is `42 << 20`; task 3 of array 42 is that plus 4. So keys sort by job, then by task, and a key is a
row id in the store. Users see the label: `42` or `42_3`.
"""

from __future__ import annotations

from typing import NewType

JobKey = NewType("JobKey", int)

TASK_BITS = 20
TASK_MAX = (1 << TASK_BITS) - 2
TASK_MASK = (1 << TASK_BITS) - 1


def job_key(number: int, task: int | None = None) -> JobKey:
    """The key of job `number`, or of its array task `task`."""
    return JobKey(number << TASK_BITS | (0 if task is None else task + 1))


def number_of(key: JobKey) -> int:
    """The job number: 42 for `42` and for `42_3`."""
    return key >> TASK_BITS


def task_of(key: JobKey) -> int | None:
    """The array task; None for a job that is not a task."""
    task = key & TASK_MASK
    return task - 1 if task else None


def label(key: JobKey) -> str:
    """Format a key for users: `42` or `42_3`."""
    task = key & TASK_MASK
    return f"{key >> TASK_BITS}_{task - 1}" if task else str(key >> TASK_BITS)


def parse_label(text: str) -> JobKey | None:
    """Parse a label, `42` or `42_3`; None if it is malformed."""
    number, bar, task = text.partition("_")
    if not number.isdecimal() or not number.isascii() or len(number) > 12:
        return None
    if not bar:
        return job_key(int(number))
    if not task.isdecimal() or not task.isascii() or len(task) > 7 or int(task) > TASK_MAX:
        return None
    return job_key(int(number), int(task))
