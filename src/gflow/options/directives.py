"""`# GFLOW --gpus 2` lines of scripts: the same options, with shell quoting."""

from __future__ import annotations

import shlex
from typing import Any

from gflow.errors import UsageError
from gflow.options.parse import parse
from gflow.options.table import JOB

MARK = "# GFLOW "


def read(script: str, where: str) -> dict[str, Any]:
    """Option values (by option name) that a script asks for."""
    words: list[str] = []
    for number, line in enumerate(script.splitlines(), 1):
        if line.startswith(MARK):
            try:
                words += shlex.split(line[len(MARK) :], comments=True)
            except ValueError as error:
                raise UsageError(f"{where}, line {number}: {error}") from None
    try:
        values, rest = parse(words, JOB)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from None
    if rest:
        raise UsageError(f"{where}: {rest[0]!r} in a # GFLOW line is not an option")
    return values
