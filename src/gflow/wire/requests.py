"""Request types of the API, and the conversion of a submission into specs.

The option table is the schema of the options.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterator, Mapping
from signal import Signals, valid_signals
from typing import Annotated, Any, NamedTuple

import msgspec

from gflow.core.model import DEFAULT_SPEC, PARENT_FIELDS, Spec
from gflow.core.state.quotas import Scope
from gflow.errors import UsageError
from gflow.options.job_options import JOB, NAME_LENGTH, Option
from gflow.options.node_shape import expand_shapes
from gflow.options.rules import check_rules
from gflow.options.sweeps import Parameter
from gflow.options.values import read
from gflow.wire.default_name import default_name
from gflow.wire.races import resolve_race
from gflow.wire.sweeps import combinations, count_jobs, fill_templates

COMMAND_BYTES = 1 << 20
# PATH_MAX; and the largest stored texts of a job. No kernel passes more than 6 MiB of variables to execve.
PATH_LENGTH = 4096
MOST_TEXT = {"environ": 6 << 20, "script": 16 << 20}
BATCH = 100_000
# Placeholder of `--gpu-memory auto` until the daemon resolves it.
AUTO_MIB = -1
OPTIONS = {option.name: option for option in JOB}
# The default `overflow` does not apply to jobs with one of these options. An explicit --overflow does.
NOT_OVERFLOWING = {option.name for option in JOB if option.only_on == "here"}.union(
    OPTIONS["overflow"].excludes
)
# Most values in one job (or in a request without jobs), and in all jobs of a request. They are counted before
# decoding, because msgspec checks the length of a list only after it has decoded all of it.
MOST_VALUES = 500_000
MOST_VALUES_TOGETHER = 3_000_000
# Only a body larger than this can hold too many values; it is decoded in a thread.
LARGE = 256 << 10

# Types with length limits, for fields that nothing else limits.
Text = Annotated[str, msgspec.Meta(max_length=PATH_LENGTH)]
Command = Annotated[list[str], msgspec.Meta(max_length=100_000)]
Options = Annotated[dict[str, Any], msgspec.Meta(max_length=200)]
Rows = Annotated[
    list[Annotated[dict[str, str], msgspec.Meta(max_length=1000)]], msgspec.Meta(max_length=BATCH)
]
Jobs = Annotated[list[Text], msgspec.Meta(max_length=BATCH)]
Indices = Annotated[list[int], msgspec.Meta(max_length=65_536)]
# Filters of jobs. Each is compared with every job, so there are few, none longer than a name.
Words = Annotated[list[Annotated[str, msgspec.Meta(max_length=NAME_LENGTH)]], msgspec.Meta(max_length=100)]


def _base64(about: str) -> Any:
    """Metadata of a field with arbitrary bytes, base64-encoded in JSON. Shown in OpenAPI."""
    return msgspec.Meta(extra_json_schema={"contentEncoding": "base64", "description": about})


Environment = Annotated[
    str, _base64("NAME=value pairs with a NUL between them, in base64: a value may hold any byte")
]
Script = Annotated[str, _base64("the content of the script, in base64")]


class JobRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One job as a client describes it."""

    command: Command = []
    cwd: str
    # The folder on a cluster over SSH, for jobs whose files are not sent: relative to that of the target.
    chdir: str = ""
    umask: int = 0o022
    environ: Environment = ""
    # The text of a script, and its path; `command` then holds its arguments.
    script: Script | None = None
    script_path: str = ""
    # Values by option name, as text or as JSON of the option's own type.
    options: Options = {}
    # A sweep: one job for each row of parameters, times the combinations of the option `param`.
    rows: Rows = []


class SubmitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs to submit together. The token makes a retry idempotent."""

    token: str
    jobs: Annotated[list[JobRequest], msgspec.Meta(max_length=BATCH)]
    # The environment of jobs without one of their own, so that many jobs share one text.
    environ: Environment = ""


class RawSubmitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A SubmitRequest whose jobs are decoded one by one: decoding 100,000 at once takes 0.3 s."""

    token: str
    jobs: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=BATCH)]
    environ: Environment = ""


class JobSelection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs by selectors, by filters, or by both; then a job must match both."""

    jobs: Jobs = []
    all: bool = False
    # Shell patterns: exp-*.
    names: Words = []
    states: Words = []
    projects: Words = []
    users: Words = []

    @property
    def is_filtered(self) -> bool:
        return self.all or bool(self.names or self.states or self.projects or self.users)


class CancelRequest(JobSelection, kw_only=True, forbid_unknown_fields=True):
    """Jobs to cancel."""

    now: bool = False
    dry_run: bool = False


class SignalRequest(JobSelection, kw_only=True, forbid_unknown_fields=True):
    """Running jobs, and the signal to send to them: `USR1`, `SIGUSR1` or `10`.

    With `batch` only their first processes get it.
    """

    signal: Text | int
    batch: bool = False

    @property
    def number(self) -> int:
        """The number of the signal; raises UsageError if there is none of this name."""
        name = str(self.signal).upper().removeprefix("SIG")
        number = int(name) if name.isdecimal() and name.isascii() and len(name) < 4 else 0
        found = getattr(Signals, "SIG" + name, number)
        if found not in valid_signals():
            raise UsageError(f"there is no signal {self.signal!a:.60}", hint="write USR1, SIGUSR1 or 10")
        return int(found)


class TokenRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new token for the caller."""

    name: Text = ""
    days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 90


class RevokeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The token to revoke."""

    id: Text


class LinkRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A link to the web page. `operator`: with the rights of an operator, if the caller has them."""

    operator: bool = False


class CodeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The code of a link, for a session."""

    code: Text


class LogoutRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sessions to end: all of the caller, or `this` one."""

    this: bool = False


class ExecRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A command to execute in a running job. `tty`: on a terminal of type `term`."""

    command: Command
    tty: bool = False
    term: Text = ""


class References(NamedTuple):
    """Dependencies as written: `17`, `@`, `@~2`. They are resolved when the job is submitted."""

    # One field for each of `PARENT_FIELDS`.
    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()
    start: tuple[str, ...] = ()

    @classmethod
    def take(cls, fields: dict[str, Any]) -> References:
        """Remove the references from the fields of a spec, and return them."""
        return cls(*(fields.pop(name, ()) for name in PARENT_FIELDS))


class HoldRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Waiting jobs to hold."""

    jobs: Jobs


class ReleaseRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Held jobs to release, optionally not before a time."""

    jobs: Jobs
    at: Text | float | None = None

    def begin_time(self) -> float | None:
        return None if self.at is None else float(read(OPTIONS["begin"], self.at))


class UpdateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs to update, and their new options, as in a submission."""

    jobs: Jobs
    # null resets an option to its default.
    options: Options = {}
    command: Command | None = None
    script: Script | None = None
    script_path: str = ""


class RedoRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs to submit again as new jobs, optionally with other options. `job`: one, or several as `5-9`."""

    job: Text
    token: str
    # Only those that ended as Failed or Timeout.
    failed: bool = False
    options: Options = {}
    clear_deps: bool = False
    # Also redo the jobs that were cancelled because this one failed.
    cascade: bool = False


class DrainRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Drain (`on`) or resume the machine, or these GPUs. `passing`: until the daemon stops."""

    on: bool
    gpus: Indices | None = None
    reason: Text = ""
    passing: bool = False


class LimitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Number of jobs of a group, or of tasks of an array, that may run at once; 0: no limit."""

    job: Text
    max_concurrent: Annotated[int, msgspec.Meta(ge=0, le=OPTIONS["max-concurrent"].high)]


class GpuProcess(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A process on a GPU."""

    gpu_index: int
    pid: int


class GpusRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The GPUs that new jobs may get; null: all."""

    allowed_indices: Indices | None


class ParsedJob(msgspec.Struct, kw_only=True):
    """A job request, parsed and checked: the spec, its references, and the texts to store."""

    spec: Spec
    references: References
    blobs: dict[str, bytes]
    # Whether it is one of several jobs of a sweep.
    is_of_sweep: bool = False


# The blobs of the further jobs of a sweep: the first one has them all.
NO_BLOBS: dict[str, bytes] = {}


# One call of msgspec holds all threads for 50 ms with 100,000 jobs, and for 1 ms with this many bytes.
_PIECE = 1 << 18
_PAUSE_S = 0.0001
_JOBS = re.compile(rb'"jobs"\s*:\s*\[')
_BETWEEN_JOBS = re.compile(rb"\}\s*,\s*(?=\{)")
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_submission = msgspec.json.Decoder(RawSubmitRequest).decode


def decode(body: bytes, into: type[Any]) -> Any:
    """Decode a request. Raises UsageError with one sentence if it is not valid."""
    try:
        if len(body) > LARGE:
            _check_values(body, into)
        if into is RawSubmitRequest and (found := _decode_in_pieces(body)) is not None:
            return found
        return msgspec.json.decode(body, type=into)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _invalid(str(error)) from error


def _decode_in_pieces(body: bytes) -> RawSubmitRequest | None:
    """Decode a long submission piece by piece, so that other threads run in between.

    None: it is short, not valid, or a command looks like the end of a job where a piece would end.
    """
    start = _JOBS.search(body) if len(body) > 2 * _PIECE else None
    if start is None:
        return None
    jobs, at = list[msgspec.Raw](), start.end()
    try:
        while end := _BETWEEN_JOBS.search(body, at + _PIECE):
            # Valid JSON only if this is the end of a job: the piece begins where another one does.
            jobs += _decode_raws(b"[%b]" % body[at : end.start() + 1])
            at = end.end()
            time.sleep(_PAUSE_S)
        found = _decode_submission(body[: start.end()] + body[at:])
    except (msgspec.MsgspecError, RecursionError):
        return None
    found.jobs = jobs + found.jobs
    return found if len(found.jobs) <= BATCH else None


def _check_values(body: bytes, into: type[Any]) -> None:
    """Refuse a request with too many values before it is decoded, by counting commas.

    The jobs of a submission are counted one by one, when each is decoded.
    """
    if into is not RawSubmitRequest:
        _check_commas(body)


def _check_commas(text: bytes) -> None:
    if len(text) > MOST_VALUES and text.count(b",") > MOST_VALUES:
        raise UsageError(f"a job may have at most {MOST_VALUES:,} values", hint="put them into a file")


_decode_job = msgspec.json.Decoder(JobRequest).decode


def decode_job(raw: msgspec.Raw, number: int) -> JobRequest:
    """Decode one job of a submission. `number`: its index, for error messages."""
    try:
        text = bytes(raw)
        _check_commas(text)
        return _decode_job(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _invalid(str(error).replace("`$", f"`$.jobs[{number}]")) from error


def _invalid(problem: str) -> UsageError:
    if "surrogate" in problem:
        return UsageError(
            "the request is not valid: it holds text that is not UTF-8",
            hint="paths, too, must be UTF-8; a link to the file or folder may have such a name: ln -s",
        )
    return UsageError(f"the request is not valid: {problem}")


class Reader:
    """Parses the jobs of one submission. Options and texts that jobs share are parsed once."""

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
        self._options: dict[bytes, ParsedOptions] = {}

    def read_all(self, request: JobRequest) -> Iterator[ParsedJob]:
        """Check one request and yield its jobs: one, or those of a sweep."""
        described, params = self.read(request)
        count = count_jobs(params, request.rows)
        if not count:
            yield described
            return
        if described.spec.array:
            raise UsageError("--param makes a sweep, and that cannot be an --array as well")
        blobs = described.blobs
        for spec in fill_templates(described.spec, combinations(params, request.rows)):
            yield ParsedJob(spec=spec, references=described.references, blobs=blobs, is_of_sweep=True)
            blobs = NO_BLOBS

    def read(self, request: JobRequest) -> tuple[ParsedJob, tuple[Parameter, ...]]:
        """Check one job request. Returns the job before substitution, and the parameters of its sweep."""
        check_command(request)
        fields, params = self._fields(request.options)
        references = References.take(fields)
        blobs: dict[str, bytes] = {}
        spec = Spec(
            command=tuple(request.command),
            cwd=request.cwd,
            chdir=request.chdir,
            umask=request.umask & 0o777,
            environ=self._store_text(request.environ, "environ", blobs) if request.environ else "",
            script=self._store_text(request.script, "script", blobs) if request.script else "",
            script_path=request.script_path,
            limits=self._limits,
            default_name="" if fields.get("name") else default_name(request.command, request.script_path),
            **fields,
        )
        check_rules(spec, DEFAULT_SPEC)
        return ParsedJob(spec=spec, references=references, blobs=blobs), params

    def _fields(self, options: dict[str, Any]) -> ParsedOptions:
        written = msgspec.json.encode(options)
        found = self._options.get(written)
        if found is None:
            given = expand_shapes(options, self._shapes)
            found = self._options[written] = read_options(applicable_defaults(self._defaults, given) | given)
            resolve_race(found.fields)
        return ParsedOptions(dict(found.fields), found.params)

    def _store_text(self, text: str, what: str, blobs: dict[str, bytes]) -> str:
        address = self._texts.get(text)
        if address is None:
            content = unbase64(text, what)
            address = self._texts[text] = self._address_of(content)
            blobs[address] = content
        return address


def applicable_defaults(defaults: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The daemon's default options that apply to a job with these options."""
    unwanted = set()
    if options.keys() & NOT_OVERFLOWING:
        unwanted.add("overflow")
    if "overflow" in options:  # it begins to wait on this machine
        unwanted.add("on")
    return {name: value for name, value in defaults.items() if name not in unwanted} if unwanted else defaults


class ParsedOptions(NamedTuple):
    """Parsed options: fields of a spec, and the parameters of a sweep."""

    fields: dict[str, Any]
    params: tuple[Parameter, ...]


def read_options(options: dict[str, Any]) -> ParsedOptions:
    """Parse options by name, and check those that depend on each other."""
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
                f"--array …%{cap} and --max-concurrent {fields['max_concurrent']} are contradictory",
                hint="give only one of them",
            )
        fields |= {"array": array, "max_concurrent": cap}
    if isinstance(fields.get("predicted_mib"), str):
        raise UsageError(
            f"--fit {fields['predicted_mib']!a} names a file, which the daemon does not read",
            hint="give programs' predictions as a number: MiB on each GPU",
        )
    for name in ("venv", "conda_env"):
        if name in fields and not fields[name].startswith("/"):
            raise UsageError(
                f"{fields[name]!r} is not the folder of an environment", hint="give its absolute path"
            )
    return ParsedOptions(fields, fields.pop("parameters", ()))


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
    text = " ".join((*request.command, request.cwd, request.chdir, request.script_path))
    if "\0" in text:
        raise UsageError("a command cannot hold a NUL character")
    if len(text) * 4 > COMMAND_BYTES and sum(len(word.encode()) for word in request.command) > COMMAND_BYTES:
        raise UsageError("the command is longer than 1 MiB", hint="put it into a script")
    if max(map(len, (request.cwd, request.chdir, request.script_path))) > PATH_LENGTH:
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
    """Quota of a user or project; without a name, the default quota of users or projects."""

    scope: Scope
    name: Text = ""
    max_running_jobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_running_gpus: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_queued_jobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    remove: bool = False
    # Accept a user or project that is not known.
    force: bool = False


WallTime = Annotated[float, msgspec.Meta(ge=0, le=250_000_000_000)]
Duration = Annotated[float, msgspec.Meta(gt=0, le=315_360_000)]


class ReservationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """GPUs to reserve for a user: a number, or indices. Without a start time, from now on."""

    user: Text
    gpu_count: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 0
    gpu_indices: (
        Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=65_536)] | None
    ) = None
    start_time: WallTime = 0.0
    duration_secs: Duration
    # Accept a user that is not known.
    force: bool = False
    # Only say what would be reserved, and which jobs it would stop.
    dry_run: bool = False


class ReservationChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What changes of a reservation; null: it stays. With another start the length stays."""

    gpu_indices: (
        Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1, max_length=65_536)]
        | None
    ) = None
    start_time: WallTime | None = None
    duration_secs: Duration | None = None
    # Only say what would be reserved, and which jobs it would stop.
    dry_run: bool = False
