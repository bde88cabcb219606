"""Expansion of sweeps: one request becomes a job for each combination of its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from gflow.core.model import Spec
from gflow.core.sweep_template import fill_spec
from gflow.errors import UsageError
from gflow.options.job_options import PARAM_FILE
from gflow.options.sweeps import MOST, Parameter, parameters

# Largest total size of all commands of a sweep.
MOST_BYTES = 64 << 20
Choice = dict[str, str]


def count_jobs(params: tuple[Parameter, ...], rows: list[Choice]) -> int:
    """How many jobs the sweep has; 0 if the request is not a sweep."""
    if not params and not rows:
        return 0
    names = [name for name, _ in params]
    for name in names:
        if names.count(name) > 1 or (rows and name in rows[0]):
            raise UsageError(f"the parameter {name} is given twice")
    count = max(1, len(rows))
    for _, values in params:
        count *= len(values)
    if count > MOST:
        raise UsageError(f"a sweep may have at most {MOST:,} jobs, not {count:,}", hint="see --array")
    return count


def combinations(params: tuple[Parameter, ...], rows: list[Choice]) -> Iterator[Choice]:
    """Every row with every combination of the parameters."""
    names = [name for name, _ in params]
    for row in _check_rows(rows):
        for values in product(*(v for _, v in params)):
            yield row | dict(zip(names, values, strict=True))


def _check_rows(rows: list[Choice]) -> Iterator[Choice]:
    """Yield the rows, or one empty row if there are none. All must have the same, valid names."""
    if rows:
        parameters({name: ["1"] for name in rows[0]}, PARAM_FILE)
    for row in rows or [{}]:
        if rows and row.keys() != rows[0].keys():
            raise UsageError("the rows of a sweep have different names")
        if any("\0" in value for value in row.values()):
            raise UsageError("a parameter cannot hold a NUL character")
        yield row


def fill_templates(spec: Spec, choices: Iterable[Choice]) -> Iterator[Spec]:
    """Yield the spec with each choice substituted into its command and name."""
    size = 0
    for choice in choices:
        made = fill_spec(spec, choice)
        size += sum(map(len, made.command))
        if size > MOST_BYTES:
            raise UsageError("the commands of this sweep are larger than 64 MiB together")
        yield made


def single_values(params: tuple[Parameter, ...]) -> tuple[tuple[str, str], ...]:
    """Parameters of a single job. Raises UsageError if one has several values."""
    for name, values in params:
        if len(values) != 1:
            raise UsageError(f"{name} can have one value here, not {len(values)}", hint="--param lr=0.1")
    return tuple((name, values[0]) for name, values in params)
