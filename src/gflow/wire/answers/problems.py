"""Errors as JSON: problem documents of the API, and the output of a failed command with `--json`."""

from __future__ import annotations

import msgspec

from gflow.errors import GflowError
from gflow.wire.shell_words import spell_hint


class Problem(msgspec.Struct, kw_only=True):
    """A refusal (RFC 9457). `exit_code`: what a command leaves with."""

    type: str
    title: str
    status: int
    code: str
    hint: str
    exit_code: int


class ErrorDetails(msgspec.Struct, kw_only=True):
    """The error of a command."""

    code: str
    message: str
    hint: str


class CommandError(msgspec.Struct):
    """The JSON output of a failed command with `--json`."""

    error: ErrorDetails


def problem(error: GflowError) -> Problem:
    """The problem document of an error, with its code and exit code."""
    return Problem(
        type=f"urn:gflow:{error.code}",
        title=error.message,
        status=error.http_status,
        code=error.code,
        hint=spell_hint(error),
        exit_code=error.exit_code,
    )


def error_view(error: GflowError) -> CommandError:
    return CommandError(ErrorDetails(code=error.code, message=error.message, hint=spell_hint(error)))
