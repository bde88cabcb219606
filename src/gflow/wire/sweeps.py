"""A sweep: one request that becomes a job for every choice of its parameters."""

from __future__ import annotations

from itertools import product

from gflow.core.model import Spec
from gflow.core.parameters import with_values
from gflow.errors import UsageError
from gflow.options.sweeps import MOST, Parameter, parameters
from gflow.options.table import PARAM_FILE

# What all commands of a sweep may take together: nobody means more.
MOST_BYTES = 64 << 20
Choice = dict[str, str]


def combined(params: tuple[Parameter, ...], rows: list[Choice]) -> list[Choice] | None:
    """Every row with every combination of the parameters; None: this is no sweep."""
    if not params and not rows:
        return None
    names = [name for name, _ in params]
    for name in names:
        if names.count(name) > 1 or any(name in row for row in rows):
            raise UsageError(f"the parameter {name} is given twice")
    count = max(1, len(rows))
    for _, values in params:
        count *= len(values)
    if count > MOST:
        raise UsageError(f"a sweep may have at most {MOST:,} jobs, not {count:,}", hint="see --array")
    combinations = [dict(zip(names, values, strict=True)) for values in product(*(v for _, v in params))]
    return [row | choice for row in _checked(rows) or [{}] for choice in combinations]


def _checked(rows: list[Choice]) -> list[Choice]:
    """The rows, if all have the same, proper names."""
    for row in rows:
        if row.keys() != rows[0].keys():
            raise UsageError("the rows of a sweep have different names")
    if rows:
        parameters({name: ["1"] for name in rows[0]}, PARAM_FILE)
    if any("\0" in value for row in rows for value in row.values()):
        raise UsageError("a parameter cannot hold a NUL character")
    return rows


def filled(spec: Spec, choices: list[Choice]) -> list[Spec]:
    """The spec with each choice put into its command and its name."""
    specs = []
    size = 0
    for choice in choices:
        specs.append(with_values(spec, choice))
        size += sum(map(len, specs[-1].command))
        if size > MOST_BYTES:
            raise UsageError("the commands of this sweep are larger than 64 MiB together")
    return specs


def single_values(params: tuple[Parameter, ...]) -> tuple[tuple[str, str], ...]:
    """Parameters of one job: each has one value."""
    for name, values in params:
        if len(values) != 1:
            raise UsageError(f"{name} can have one value here, not {len(values)}", hint="--param lr=0.1")
    return tuple((name, values[0]) for name, values in params)
