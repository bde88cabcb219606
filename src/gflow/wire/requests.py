"""Requests of the API, and how a submission becomes specs. The option table is the schema."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec

from gflow.core.model import Spec
from gflow.errors import UsageError
from gflow.options.table import JOB
from gflow.options.values import read

COMMAND_BYTES = 1 << 20
BATCH = 100_000
_OPTIONS = {option.name: option for option in JOB}
# The project is what a job is accounted to; an array's tasks exist already; hold has its own verb.
UNCHANGEABLE = frozenset({"project", "array", "hold"})


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
    # The environment of those jobs that bring none of their own: ten thousand jobs, one text.
    environ: str = ""


class CancelRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs to cancel, as people write them."""

    jobs: list[str]
    now: bool = False


class References(NamedTuple):
    """Parents as written: `17`, `@`, `@~2`. What they mean is known when the job is taken."""

    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()


class HoldRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Waiting jobs that are not to start."""

    jobs: list[str]


class ReleaseRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Held jobs that may start, perhaps not before a time."""

    jobs: list[str]
    at: str | float | None = None

    def begin_time(self) -> float | None:
        return None if self.at is None else float(read(_OPTIONS["begin"], self.at))


class UpdateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs of which something that was asked for changes: options as in a submission."""

    jobs: list[str]
    options: dict[str, Any]


class DrainRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether nothing more is to start, at all or on these GPUs. `passing`: for this daemon's life."""

    on: bool
    gpus: list[int] | None = None
    reason: str = ""
    passing: bool = False


class LimitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many of a job's group, or of an array's tasks, may run at once; 0: any number."""

    job: str
    max_concurrent: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class GpusRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The GPUs that new jobs may get; null: all."""

    allowed_indices: list[int] | None


class Described(msgspec.Struct, kw_only=True):
    """A request read and checked: the spec, its references, and the texts it needs stored."""

    spec: Spec
    references: References
    blobs: dict[str, bytes]


def decode(body: bytes, into: type[Any]) -> Any:
    """The request in `body`, or one sentence on what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=into)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"the request is not valid: {error}") from error


def describe_update(request: UpdateRequest) -> tuple[dict[str, Any], References]:
    """The fields of a spec that an update changes."""
    for name in request.options.keys() & UNCHANGEABLE:
        raise UsageError(f"--{name} cannot be changed after submission")
    if not request.options:
        raise UsageError("there is nothing to change")
    fields = read_options(request.options)
    return fields, References(fields.pop("depends_on", ()), fields.pop("depends_any", ()))


class Reader:
    """Reads the jobs of one submission. What many of them have in common is read once."""

    def __init__(
        self,
        address_of: Callable[[bytes], str],
        limits: tuple[tuple[int, int, int], ...] = (),
        defaults: dict[str, Any] | None = None,
    ) -> None:
        self._address_of = address_of
        self._defaults = defaults or {}
        self._limits = limits
        self._texts: dict[str, str] = {}
        self._options: dict[bytes, dict[str, Any]] = {}

    def read(self, request: JobRequest) -> Described:
        """Check one job request and turn it into a spec."""
        _check_command(request)
        fields = self._fields(request.options)
        references = References(fields.pop("depends_on", ()), fields.pop("depends_any", ()))
        blobs: dict[str, bytes] = {}
        spec = Spec(
            command=tuple(request.command),
            cwd=request.cwd,
            umask=request.umask & 0o777,
            environ=self._stored(request.environ, "environ", blobs) if request.environ else "",
            script=self._stored(request.script, "script", blobs) if request.script else "",
            script_path=request.script_path,
            limits=self._limits,
            **fields,
        )
        return Described(spec=spec, references=references, blobs=blobs)

    def _fields(self, options: dict[str, Any]) -> dict[str, Any]:
        written = msgspec.json.encode(options)
        fields = self._options.get(written)
        if fields is None:
            fields = self._options[written] = read_options(self._defaults | options)
        return dict(fields)

    def _stored(self, text: str, what: str, blobs: dict[str, bytes]) -> str:
        address = self._texts.get(text)
        if address is None:
            content = _unbase64(text, what)
            address = self._texts[text] = self._address_of(content)
            blobs[address] = content
        return address


def read_options(options: dict[str, Any]) -> dict[str, Any]:
    """Field values of a spec from options by name."""
    fields = {}
    for name, value in options.items():
        option = _OPTIONS.get(name)
        if option is None:
            raise UsageError(f"unknown option {name!r}")
        fields[option.field] = read(option, value)
    _check_together(fields)
    return fields


def _check_together(fields: dict[str, Any]) -> None:
    """What no single option can see."""
    if fields.get("shared") and not (fields.get("gpu_memory_mib") and fields.get("gpus")):
        raise UsageError(
            "--shared needs --gpus and --gpu-memory", hint="gbatch --gpus 1 --shared --gpu-memory 20G …"
        )
    array, percent, cap = fields.get("array", "").partition("%")
    if percent:
        fields["array"] = array
        fields["max_concurrent"] = int(cap)


def _check_command(request: JobRequest) -> None:
    if request.script is None and not (request.command and request.command[0]):
        raise UsageError("there is no command to run", hint="gbatch COMMAND ARGS…, or gbatch script.sh")
    if request.script is not None and not request.script:
        raise UsageError("the script is empty")
    text = " ".join((*request.command, request.cwd, request.script_path))
    if "\0" in text:
        raise UsageError("a command cannot hold a NUL character")
    if len(text) * 4 > COMMAND_BYTES and sum(len(word.encode()) for word in request.command) > COMMAND_BYTES:
        raise UsageError("the command is longer than 1 MiB", hint="put it into a script")
    if not request.cwd.startswith("/"):
        raise UsageError(f"the working folder must be an absolute path, not {request.cwd!r}")


def _unbase64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UsageError(f"{what} is not base64") from error
