"""Parts of an array: several Slurm arrays that have its tasks, where one would exceed a limit of Slurm. Pure.

The index of a task in Slurm is below MaxArraySize, so tasks above it have an offset. A part that exceeds the
number of jobs that a user may have in Slurm is halved until Slurm takes one; the others follow as jobs end.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from gflow.core.task_set import Span, TaskSet

# Slurm's default of MaxArraySize. Arrays with lower indices are submitted without asking for it.
USUAL_LIMIT = 1001
# Numbers of parts that are submitted again begin here: above those of all tasks.
FIRST_REPEATED = 1 << 20
# While other tasks of the array are in Slurm, no smaller part is made: that would take a call for each task.
LEAST_TASKS = 10


class Part(NamedTuple):
    """Tasks of one Slurm array. `number`: that of its candidate; 0, its first task, or above all tasks."""

    number: int
    tasks: TaskSet
    offset: int = 0


def parts_of(tasks: TaskSet, limit: int) -> list[Part]:
    """The parts of an array for this MaxArraySize, in the order of their tasks."""
    parts = []
    begin = tasks.first // limit * limit
    while begin <= tasks.last:
        part = tasks.between(begin, begin + limit - 1)
        if part:
            parts.append(Part(part.first if begin else 0, part, begin))
        begin += limit
    return parts


def other_parts(tasks: TaskSet, asked: Iterable[Part], limit: int) -> list[Part]:
    """The parts of the tasks that are in none of those that an earlier daemon called sbatch for."""
    for part in asked:
        tasks = without(tasks, part.tasks)
    return [one._replace(number=one.tasks.first) for one in parts_of(tasks, limit)] if tasks else []


def common(some: TaskSet, others: TaskSet) -> TaskSet:
    """The tasks that are in both sets."""
    for task in some:
        if task not in others:
            some = some.without(task)
    return some


def without(some: TaskSet, others: TaskSet) -> TaskSet:
    """The tasks of the first set that are not in the second."""
    for task in others:
        some = some.without(task)
    return some


def set_of(tasks: Iterable[int]) -> TaskSet:
    """A set of single tasks."""
    return TaskSet(Span(task, task) for task in tasks)


def halve(tasks: TaskSet) -> tuple[TaskSet, TaskSet]:
    """The first and the second half of at least two tasks."""
    middle = next(islice(tasks, (len(tasks) - 1) // 2, None))
    return tasks.between(tasks.first, middle), tasks.between(middle + 1, tasks.last)
