"""Parse `# GFLOW --gpus 2` lines of scripts: job options with shell quoting."""

from __future__ import annotations

import shlex
from typing import Any

from gflow.errors import UsageError
from gflow.options.job_options import CAPTURE, JOB, SLURM
from gflow.options.parse import parse

MARKS = ("# GFLOW ", "#GFLOW ")


def _without_comment(line: str) -> str:
    """Strip a shell comment: `#` starts one only at the start of a word, outside quotes."""
    quote = before = ""
    for at, char in enumerate(line):
        if before == "\\" and quote != "'":
            char = ""  # an escaped character, which escapes nothing itself
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (not before or before.isspace()):
            return line[:at]
        before = char or "x"
    return line


def read(script: str, where: str) -> dict[str, Any]:
    """Option values (by option name) of the directives of a script. `where` is for error messages."""
    words: list[str] = []
    for number, line in enumerate(script.replace("\r\n", "\n").split("\n"), 1):
        if line.startswith(MARKS):
            try:
                words += shlex.split(_without_comment(line.partition("GFLOW ")[2]))
            except ValueError as error:
                raise UsageError(f"{where}, line {number}: {error}") from None
    try:
        values, rest = parse(words, JOB + CAPTURE + SLURM)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from None
    if rest:
        raise UsageError(f"{where}: {rest[0]!r} in a # GFLOW line is not an option")
    return values
