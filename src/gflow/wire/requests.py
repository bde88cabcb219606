"""Requests of the API, and how a submission becomes specs. The option table is the schema."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from gflow.core.model import Spec
from gflow.errors import UsageError
from gflow.options.table import JOB
from gflow.options.values import read

COMMAND_BYTES = 1 << 20
BATCH = 100_000
_OPTIONS = {option.name: option for option in JOB}


class JobRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One job as a client describes it."""

    command: list[str] = []
    cwd: str
    umask: int = 0o022
    # NUL-separated NAME=value block, base64: a value may hold any byte.
    environ: str = ""
    # Text of the script, base64, and where it was read; `command` then holds its arguments.
    script: str | None = None
    script_path: str = ""
    # Values by option name, as text or as JSON of the option's own type.
    options: dict[str, Any] = {}


class SubmitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs to submit together, under a token that makes a retry harmless."""

    token: str
    jobs: list[JobRequest]


class CancelRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs to cancel, as people write them."""

    jobs: list[str]
    now: bool = False


class Described(msgspec.Struct, kw_only=True):
    """A request read and checked: the spec, its references, and the texts it needs stored."""

    spec: Spec
    references: tuple[str, ...]
    blobs: dict[str, bytes]


def decode(body: bytes, into: type[Any]) -> Any:
    """The request in `body`, or one sentence on what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=into)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"the request is not valid: {error}") from error


def describe(request: JobRequest, address_of: Any) -> Described:
    """Check one job request and turn it into a spec."""
    fields = read_options(request.options)
    references: tuple[str, ...] = fields.pop("depends_on", ())
    blobs: dict[str, bytes] = {}

    def stored(text: str | None, what: str) -> str:
        if not text:
            return ""
        content = _unbase64(text, what)
        address: str = address_of(content)
        blobs[address] = content
        return address

    _check_command(request)
    spec = Spec(
        command=tuple(request.command),
        cwd=request.cwd,
        umask=request.umask & 0o777,
        environ=stored(request.environ, "environ"),
        script=stored(request.script, "script"),
        script_path=request.script_path,
        **fields,
    )
    return Described(spec=spec, references=references, blobs=blobs)


def read_options(options: dict[str, Any]) -> dict[str, Any]:
    """Field values of a spec from options by name."""
    fields = {}
    for name, value in options.items():
        option = _OPTIONS.get(name)
        if option is None:
            raise UsageError(f"unknown option {name!r}")
        fields[option.field] = read(option, value)
    return fields


def _check_command(request: JobRequest) -> None:
    if request.script is None and not (request.command and request.command[0]):
        raise UsageError("there is no command to run", hint="gbatch COMMAND ARGS…, or gbatch script.sh")
    if request.script is not None and not request.script:
        raise UsageError("the script is empty")
    words = (*request.command, request.cwd, request.script_path)
    if any("\0" in word for word in words):
        raise UsageError("a command cannot hold a NUL character")
    if sum(len(word.encode()) for word in request.command) > COMMAND_BYTES:
        raise UsageError("the command is longer than 1 MiB", hint="put it into a script")
    if not request.cwd.startswith("/"):
        raise UsageError(f"the working folder must be an absolute path, not {request.cwd!r}")


def _unbase64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UsageError(f"{what} is not base64") from error
