"""Columns of the results of jobs: fixed ones, one for each parameter, one for each metric."""

from __future__ import annotations

from collections.abc import Iterable

# The fixed columns before and after those of parameters and metrics.
FIRST = ("id", "name")
LAST = ("state", "reason", "exit_code", "run_s", "attempts")
# Their titles in the table for terminals, which has no column for the others.
TITLES = {
    "id": "JOBID", "name": "NAME", "state": "STATE", "exit_code": "EXIT", "run_s": "TIME",
    "attempts": "ATTEMPTS",
}  # fmt: skip
PARAMETER, METRIC = "parameters.", "metrics."
_FIXED = frozenset({*FIRST, *LAST, *(title.lower() for title in TITLES.values())})


def result_columns(
    parameters: Iterable[str], metrics: Iterable[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The columns of these parameters and of these metrics, by their names.

    A column has the name of its parameter or metric. `parameters.` or `metrics.` comes before it where the
    name, in any case, is that of a fixed column, and where a parameter and a metric have the same name.
    """
    own, reported = list(parameters), list(metrics)
    return (
        {name: _column(name, PARAMETER, reported) for name in own},
        {name: _column(name, METRIC, own) for name in reported},
    )


def _column(name: str, prefix: str, others: list[str]) -> str:
    is_taken = name.lower() in _FIXED or name in others or name.startswith((PARAMETER, METRIC))
    return prefix + name if is_taken else name
