"""Requests to change jobs there are: what they change in specs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gflow.core.model import Spec
from gflow.errors import UsageError
from gflow.options.values import read_extension
from gflow.wire.requests import (
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

# The project is what a job is accounted to; an array's tasks exist already; hold has its own verb.
UNCHANGEABLE = frozenset({"project", "array", "hold"})
DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Spec)}


class Change(msgspec.Struct, kw_only=True):
    """A change of specs read and checked: fields, references, seconds more, and texts to store."""

    fields: dict[str, Any]
    references: References
    extend_s: int = 0
    blobs: dict[str, bytes] = {}


def describe_update(request: UpdateRequest, address_of: Callable[[bytes], str]) -> Change:
    """What an update changes in specs."""
    if not request.options and request.command is None and request.script is None:
        raise UsageError("there is nothing to change")
    change = describe_options(request.options, UNCHANGEABLE)
    if request.command is not None or request.script is not None:
        # The folder is not changed; an absolute one passes the check.
        job = JobRequest(command=request.command or [], cwd="/", script=request.script)
        check_command(job)
        change.fields |= {"command": tuple(job.command), "script": "", "script_path": request.script_path}
        if request.script:
            content = unbase64(request.script, "script")
            change.fields["script"] = address_of(content)
            change.blobs = {change.fields["script"]: content}
    return change


def describe_options(options: dict[str, Any], unchangeable: frozenset[str]) -> Change:
    """Options that override those of a job there is; None sets one back, `+2h` adds to its time limit."""
    for name in sorted(options.keys() & unchangeable):
        raise UsageError(f"--{name} cannot be changed after submission")
    given = {name: value for name, value in options.items() if value is not None}
    cleared = options.keys() - given.keys()
    extend_s = 0
    if isinstance(given.get("time"), str) and given["time"].startswith("+"):
        extend_s = read_extension(given.pop("time"), OPTIONS["time"])
    fields = read_options(given)
    if "parameters" in fields:
        fields["parameters"] = single_values(fields["parameters"])
    references = References(fields.pop("depends_on", ()), fields.pop("depends_any", ()))
    for name in cleared:
        fields[option_of(name).field] = DEFAULTS[option_of(name).field]
    return Change(fields=fields, references=references, extend_s=extend_s)
