"""Named shapes: `[shapes.NAME]` of gflow.toml, sets of job options.

A shape stands for the options in it. Options that the job gives itself take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflow.errors import UsageError, unknown
from gflow.options.job_options import JOB
from gflow.options.node_shape import is_name
from gflow.options.values import read

OPTIONS = {option.name: option for option in JOB}
# Options that a shape may set: resources and where to find them. Key in the file -> option name.
KEYS = {option.name.replace("-", "_"): option.name for option in JOB if option.in_shapes} | {
    "account": "project"
}
Shapes = dict[str, dict[str, Any]]


def shapes_of(tables: Mapping[str, Mapping[str, Any]], where: str) -> Shapes:
    """Validate all shapes and return their options by name. Unknown keys are errors."""
    shapes: Shapes = {}
    for name, table in tables.items():
        if not is_name(name):
            raise UsageError(
                f"{where}: {name!a:.60} is not a valid shape name",
                hint="a shape name is a word such as big; n4_gpu1 already means four nodes with one GPU each",
            )
        for key in table.keys() - KEYS.keys():
            error = unknown("setting", f"shapes.{name}.{key}", [f"shapes.{name}.{known}" for known in KEYS])
            raise UsageError(f"{where}: {error.message}", hint=error.hint)
        if not table:
            raise UsageError(f"{where}: the shape {name} is empty", hint="nodes = 2, gpus = 4, …")
        options = {KEYS[key]: value for key, value in table.items()}
        for option, value in options.items():
            try:
                read(OPTIONS[option], value)
            except UsageError as error:
                raise UsageError(f"{where}: shapes.{name}: {error.message}", hint=error.hint) from None
        shapes[name] = options
    return shapes
