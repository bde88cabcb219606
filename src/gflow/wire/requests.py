"""Requests of the API, and how a submission becomes specs. The option table is the schema."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from gflow.core.model import Spec
from gflow.core.together import check_together
from gflow.errors import UsageError
from gflow.options.shapes import spread
from gflow.options.sweeps import Parameter
from gflow.options.table import JOB, Option
from gflow.options.values import NAME_LENGTH, read
from gflow.wire.races import settle_race
from gflow.wire.sweeps import combined, counted, filled

COMMAND_BYTES = 1 << 20
# The longest path there is; and what is kept for a job. No kernel passes more than 6 MiB of variables on.
PATH_LENGTH = 4096
MOST_TEXT = {"environ": 6 << 20, "script": 16 << 20}
BATCH = 100_000
# Stands for `--gpu-memory auto` until somebody has looked the figure up.
AUTO_MIB = -1
OPTIONS = {option.name: option for option in JOB}
# Jobs that say one of these stay where they are, unless they themselves say --overflow.
NOT_OVERFLOWING = frozenset({"on", "array", "nodes", "race", "pty", "shared"})
# What jobs are chosen by. Each is compared with every job: few, and none longer than a name.
Words = Annotated[list[Annotated[str, msgspec.Meta(max_length=NAME_LENGTH)]], msgspec.Meta(max_length=100)]


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
    # A sweep: one job for each of these sets of parameters (times those of the option `param`).
    rows: list[dict[str, str]] = []


class SubmitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs to submit together, under a token that makes a retry harmless."""

    token: str
    jobs: list[JobRequest]
    # The environment of those jobs that bring none of their own: ten thousand jobs, one text.
    environ: str = ""


class RawSubmitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The same with its jobs not read yet: to read a hundred thousand at once takes a third of a second."""

    token: str
    jobs: list[msgspec.Raw]
    environ: str = ""


class CancelRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs to cancel, as people write them, or by what they are; with both, those of the named that match."""

    jobs: list[str] = []
    now: bool = False
    dry_run: bool = False
    all: bool = False
    # Patterns as of a shell: exp-*.
    names: Words = []
    states: Words = []
    projects: Words = []
    users: Words = []

    @property
    def is_filtered(self) -> bool:
        return self.all or bool(self.names or self.states or self.projects or self.users)


class TokenRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A token to be made for the caller."""

    name: str = ""
    days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 90


class RevokeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A token to be taken away."""

    id: str


class ExecRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A command to run beside a job that runs. `tty`: at a terminal of the kind `term`."""

    command: list[str]
    tty: bool = False
    term: str = ""


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
        return None if self.at is None else float(read(OPTIONS["begin"], self.at))


class UpdateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs of which something that was asked for changes: options as in a submission."""

    jobs: list[str]
    # null sets an option back to its default.
    options: dict[str, Any] = {}
    command: list[str] | None = None
    script: str | None = None
    script_path: str = ""


class RedoRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A job to do again as a new one, with other options if some are given."""

    job: str
    token: str
    options: dict[str, Any] = {}
    clear_deps: bool = False
    # Also the jobs that were cancelled because it failed.
    cascade: bool = False


class DrainRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether nothing more is to start, at all or on these GPUs. `passing`: for this daemon's life."""

    on: bool
    gpus: list[int] | None = None
    reason: str = ""
    passing: bool = False


class LimitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many of a job's group, or of an array's tasks, may run at once; 0: any number."""

    job: str
    max_concurrent: Annotated[int, msgspec.Meta(ge=0, le=OPTIONS["max-concurrent"].high)]


class GpuProcess(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A process on a GPU."""

    gpu_index: int
    pid: int


class GpusRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The GPUs that new jobs may get; null: all."""

    allowed_indices: list[int] | None


class Described(msgspec.Struct, kw_only=True):
    """A request read and checked: the spec, its references, and the texts it needs stored."""

    spec: Spec
    references: References
    blobs: dict[str, bytes]
    # Whether it is one of several that were asked for as one.
    is_of_sweep: bool = False


# What further jobs bring that come from the same request.
NO_BLOBS: dict[str, bytes] = {}


def decode(body: bytes, into: type[Any]) -> Any:
    """The request in `body`, or one sentence on what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=into)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"the request is not valid: {error}") from error


_decode_job = msgspec.json.Decoder(JobRequest).decode


def decode_job(raw: msgspec.Raw, number: int) -> JobRequest:
    """One job of a submission, of which this is the number, or one sentence on what is wrong with it."""
    try:
        return _decode_job(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        where = str(error).replace("`$", f"`$.jobs[{number}]")
        raise UsageError(f"the request is not valid: {where}") from error


class Reader:
    """Reads the jobs of one submission. What many of them have in common is read once."""

    def __init__(
        self,
        address_of: Callable[[bytes], str],
        limits: tuple[tuple[int, int, int], ...] = (),
        defaults: dict[str, Any] | None = None,
        shapes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._address_of = address_of
        self._defaults = defaults or {}
        self._shapes = shapes or {}
        self._limits = limits
        self._texts: dict[str, str] = {}
        self._options: dict[bytes, Read] = {}

    def read_all(self, request: JobRequest) -> Iterator[Described]:
        """Check one request and turn it into its specs, one by one: one, or those of a sweep."""
        described, params = self.read(request)
        count = counted(params, request.rows)
        if not count:
            yield described
            return
        if described.spec.array:
            raise UsageError("--param makes a sweep, and that cannot be an --array as well")
        blobs = described.blobs
        for spec in filled(described.spec, combined(params, request.rows)):
            yield Described(spec=spec, references=described.references, blobs=blobs, is_of_sweep=count > 1)
            blobs = NO_BLOBS

    def read(self, request: JobRequest) -> tuple[Described, tuple[Parameter, ...]]:
        """Check one job request: its spec before the parameters of a sweep are in it, and those."""
        check_command(request)
        fields, params = self._fields(request.options)
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
        check_together(spec)
        return Described(spec=spec, references=references, blobs=blobs), params

    def _fields(self, options: dict[str, Any]) -> Read:
        written = msgspec.json.encode(options)
        found = self._options.get(written)
        if found is None:
            given = spread(options, self._shapes)
            found = self._options[written] = read_options(suited(self._defaults, given) | given)
            settle_race(found.fields)
        return Read(dict(found.fields), found.params)

    def _stored(self, text: str, what: str, blobs: dict[str, bytes]) -> str:
        address = self._texts.get(text)
        if address is None:
            content = unbase64(text, what)
            address = self._texts[text] = self._address_of(content)
            blobs[address] = content
        return address


def suited(defaults: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The defaults of this daemon that mean something for a job with these options."""
    if "overflow" in defaults and options.keys() & NOT_OVERFLOWING:
        return {name: value for name, value in defaults.items() if name != "overflow"}
    return defaults


class Read(NamedTuple):
    """Options that have been read: fields of a spec, and what a sweep is to choose from."""

    fields: dict[str, Any]
    params: tuple[Parameter, ...]


def read_options(options: dict[str, Any]) -> Read:
    """Options by name, read."""
    fields = {}
    for name, value in options.items():
        option = option_of(name)
        fields[option.field] = read(option, value)
    if fields.get("gpu_memory_mib") == "auto":
        fields["gpu_memory_mib"] = AUTO_MIB
    array, percent, text = fields.get("array", "").partition("%")
    if percent:
        cap = read(OPTIONS["max-concurrent"], text)
        if fields.get("max_concurrent", cap) != cap:
            raise UsageError(
                f"--array …%{cap} and --max-concurrent {fields['max_concurrent']} say two things",
                hint="leave one of them out",
            )
        fields |= {"array": array, "max_concurrent": cap}
    if isinstance(fields.get("predicted_mib"), str):
        raise UsageError(
            f"--fit {fields['predicted_mib']!a} names a file, which is not here",
            hint="give programs' predictions as a number: MiB on each GPU",
        )
    for name in ("venv", "conda_env"):
        if name in fields and not fields[name].startswith("/"):
            raise UsageError(
                f"{fields[name]!r} is not the folder of an environment", hint="give its absolute path"
            )
    return Read(fields, fields.pop("parameters", ()))


def option_of(name: str) -> Option:
    option = OPTIONS.get(name)
    if option is None:
        raise UsageError(f"unknown option {name!r}")
    return option


def check_command(request: JobRequest) -> None:
    if request.script is None and not (request.command and request.command[0]):
        raise UsageError("there is no command to run", hint="gbatch COMMAND ARGS…, or gbatch script.sh")
    if request.script is not None and not request.script:
        raise UsageError("the script is empty")
    text = " ".join((*request.command, request.cwd, request.script_path))
    if "\0" in text:
        raise UsageError("a command cannot hold a NUL character")
    if len(text) * 4 > COMMAND_BYTES and sum(len(word.encode()) for word in request.command) > COMMAND_BYTES:
        raise UsageError("the command is longer than 1 MiB", hint="put it into a script")
    if max(len(request.cwd), len(request.script_path)) > PATH_LENGTH:
        raise UsageError(f"a path has at most {PATH_LENGTH} characters")
    if not request.cwd.startswith("/"):
        raise UsageError(f"the working folder must be an absolute path, not {request.cwd!r}")


def unbase64(text: str, what: str) -> bytes:
    if len(text) // 4 * 3 > MOST_TEXT[what] + 2:
        raise UsageError(f"the {what} is larger than {MOST_TEXT[what] >> 20} MiB")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UsageError(f"{what} is not base64") from error


class QuotaRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What one person or project may have at once; no name: each that is not named."""

    scope: Literal["user", "project"]
    name: str = ""
    max_running_jobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_running_gpus: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_queued_jobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    remove: bool = False


class ReservationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """GPUs for one person: a number of them, or which. Without a start, from now on."""

    user: str
    gpu_count: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 0
    gpu_indices: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None
    start_time: Annotated[float, msgspec.Meta(ge=0, le=250_000_000_000)] = 0.0
    duration_secs: Annotated[float, msgspec.Meta(gt=0, le=315_360_000)]
