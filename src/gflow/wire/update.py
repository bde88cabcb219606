"""Conversion of update and redo requests into changes of specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gflow.core.model import DEFAULT_SPEC
from gflow.errors import UsageError
from gflow.options.node_shape import expand_shapes
from gflow.options.update import FIXED
from gflow.options.values import read_extension
from gflow.wire.requests import (
    AUTO_MIB,
    OPTIONS,
    JobRequest,
    References,
    UpdateRequest,
    check_command,
    option_of,
    read_options,
    unbase64,
)
from gflow.wire.sweeps import single_values


class Change(msgspec.Struct, kw_only=True):
    """A parsed and checked change: fields, references, extension of the time limit, texts to store."""

    fields: dict[str, Any]
    references: References
    extend_s: int = 0
    blobs: dict[str, bytes] = {}


def describe_update(
    request: UpdateRequest,
    address_of: Callable[[bytes], str],
    defaults: dict[str, Any],
    shapes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Change:
    """Parse and check an update request."""
    if not request.options and request.command is None and request.script is None:
        raise UsageError("there is nothing to change")
    change = describe_options(request.options, FIXED, defaults, shapes)
    if change.fields.get("gpu_memory_mib") == AUTO_MIB:
        raise UsageError(
            "--gpu-memory auto is for gbatch and gjob redo", hint="give a size: --gpu-memory 20G"
        )
    if request.command is not None or request.script is not None:
        # The working directory does not change; the check needs an absolute path.
        job = JobRequest(
            command=request.command or [], cwd="/", script=request.script, script_path=request.script_path
        )
        check_command(job)
        change.fields |= {"command": tuple(job.command), "script": "", "script_path": request.script_path}
        if request.script:
            content = unbase64(request.script, "script")
            change.fields["script"] = address_of(content)
            change.blobs = {change.fields["script"]: content}
    return change


def describe_options(
    options: dict[str, Any],
    fixed: frozenset[str],
    defaults: dict[str, Any],
    shapes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Change:
    """Parse options that override those of an existing job. None resets one, `+2h` extends the time limit.

    fixed: options that cannot be changed.
    defaults: default options of this daemon, where they differ from the built-in ones.
    shapes: the named shapes of the configuration.
    """
    for name in sorted(options.keys() & fixed):
        raise UsageError(f"--{name} cannot be changed after submission")
    # A shape sets only those of its options that can be changed.
    options = {
        name: value for name, value in expand_shapes(options, shapes or {}).items() if name not in fixed
    }
    cleared = {name for name, value in options.items() if value is None and name not in defaults}
    given = {
        name: defaults[name] if value is None else value
        for name, value in options.items()
        if name not in cleared
    }
    extend_s = 0
    if isinstance(given.get("time"), str) and given["time"].startswith("+"):
        extend_s = read_extension(given.pop("time"), OPTIONS["time"])
    fields, params = read_options(given)
    if any(":" in shape for shape in fields.get("race", ())):
        raise UsageError("a race with this machine, or with a target's name, is for gbatch")
    if params:
        fields["parameters"] = single_values(params)
    references = References.take(fields)
    for name in cleared:
        fields[option_of(name).field] = getattr(DEFAULT_SPEC, option_of(name).field)
    return Change(fields=fields, references=references, extend_s=extend_s)
