"""Shapes by name: `[shapes.NAME]` of gflow.toml, options that go together.

What a shape says counts like the options themselves; what a job says besides wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflow.errors import UsageError, unknown
from gflow.options.node_shape import is_name
from gflow.options.table import JOB
from gflow.options.values import read

# What a shape may say: what a job needs, and where it finds it. By the name in the file, the option's.
WORDS = (
    "nodes gpus gpu_type gpu_memory cpus memory time on partition qos constraint reservation exclusive slurm"
)
KEYS = {name: name.replace("_", "-") for name in WORDS.split(" ")} | {"account": "project"}
OPTIONS = {option.name: option for option in JOB}
Shapes = dict[str, dict[str, Any]]


def shapes_of(tables: Mapping[str, Mapping[str, Any]], where: str) -> Shapes:
    """All shapes, checked, as options by name; a typing error never means a silent default."""
    shapes: Shapes = {}
    for name, table in tables.items():
        if not is_name(name):
            raise UsageError(
                f"{where}: {name!a:.60} is no name for a shape",
                hint="a name is a word, such as big; n4_gpu1 means four nodes with a GPU each by itself",
            )
        for key in table.keys() - KEYS.keys():
            error = unknown("setting", f"shapes.{name}.{key}", [f"shapes.{name}.{known}" for known in KEYS])
            raise UsageError(f"{where}: {error.message}", hint=error.hint)
        if not table:
            raise UsageError(f"{where}: the shape {name} says nothing", hint="nodes = 2, gpus = 4, …")
        options = {KEYS[key]: value for key, value in table.items()}
        for option, value in options.items():
            try:
                read(OPTIONS[option], value)
            except UsageError as error:
                raise UsageError(f"{where}: shapes.{name}: {error.message}", hint=error.hint) from None
        shapes[name] = options
    return shapes
