"""Messages of an unprivileged scheduler to the launcher, and what the launcher makes of them (ADR 12).

A message names users, runs and GPUs. It cannot name a file that root opens, a limit of the machine, or a
device: the launcher fills these in (`Machine`). Folder, script and logs of a job are opened after root is
given up. A call is a message with a socket, on which the launcher answers; an event goes to the scheduler.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from gflow.core.ids import JobKey
from gflow.core.model import Job, Spec
from gflow.targets.port import HostRules, Launch, Run, Target

# Bytes of a message; larger scripts and environments travel as memory files.
MAX_BYTES = 64 << 20

Key = Annotated[int, Meta(gt=0, lt=1 << 62)]
Attempt = Annotated[int, Meta(gt=0, lt=1 << 30)]
Uid = Annotated[int, Meta(ge=0, lt=(1 << 32) - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\0/]+\Z")]
Path = Annotated[str, Meta(max_length=4096, pattern=r"^[^\0]*\Z")]
Text = Annotated[str, Meta(max_length=1 << 20, pattern=r"^[^\0]*\Z")]
Words = Annotated[tuple[Text, ...], Meta(max_length=1 << 16)]
Block = Annotated[bytes, Meta(max_length=32 << 20)]
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
Pid = Annotated[int, Meta(gt=0, lt=1 << 31)]
Uuid = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9-]+\Z")]
Limit = tuple[Count, Annotated[int, Meta(ge=-1, lt=1 << 62)], Annotated[int, Meta(ge=-1, lt=1 << 62)]]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """About one run."""

    key: Key
    attempt: Attempt

    @property
    def run(self) -> Run:
        return Run(JobKey(self.key), self.attempt)


class Order(Message, frozen=True, kw_only=True):
    """What a job needs."""

    uid: Uid
    user: Name
    command: Words
    cwd: Path
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    script: Block | None = None
    script_path: Path = ""
    environ: Block = b""
    extra: Block = b""
    log: Path = "/dev/null"
    error_log: Path = "/dev/null"
    limits: Annotated[tuple[Limit, ...], Meta(max_length=64)] = ()
    # Its GPUs, and their cards, which differ for MIG slices.
    gpus: Annotated[tuple[Uuid, ...], Meta(max_length=4096)] = ()
    cards: Annotated[tuple[Uuid, ...], Meta(max_length=4096)] = ()
    shared: bool = False
    memory_mib: Count = 0
    cpus: Count | None = None
    grace_s: Count = 30
    pty: bool = False
    wrapper: Words = ()


class Start(Order, frozen=True, kw_only=True, tag="start"):
    """Run a job."""


class Exec(Order, frozen=True, kw_only=True, tag="exec"):
    """Execute a command in a running job. A call: the path of its socket."""

    words: Words
    is_tty: bool = False


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """Stop a run by the stop contract."""

    now: bool = False
    grace_s: Count = 0
    why: Annotated[str, Meta(max_length=4096)] = ""


class Signal(Message, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to a job."""

    number: Annotated[int, Meta(ge=-64, le=64)]


class Adopt(Message, frozen=True, kw_only=True, tag="adopt"):
    """Find a run of an earlier launcher. A call: whether it may have begun."""


class Forget(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do", tag="forget"
):
    """Delete the files of runs that have ended."""

    runs: Annotated[tuple[tuple[Key, Attempt], ...], Meta(max_length=1 << 20)]


class Other(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """Not about one run."""


class Hello(Other, frozen=True, kw_only=True, tag="hello"):
    """The scheduler begins. A call: what it has to know of the launcher."""


class EarlierEpoch(Other, frozen=True, kw_only=True, tag="earlier-epoch"):
    """The launch epoch of the runs in the database."""

    epoch: Text


class ForgetOthers(Other, frozen=True, kw_only=True, tag="forget-others"):
    """Delete the files of all runs that have ended, except those with these names. A call."""

    keep: Annotated[tuple[Name, ...], Meta(max_length=1 << 22)]


class Strays(Other, frozen=True, kw_only=True, tag="strays"):
    """A call: living runs that were not among those to keep."""


class AccountOf(Other, frozen=True, kw_only=True, tag="account"):
    """A call: name, home and group of a uid, and whether it is barred."""

    uid: Uid


class OpenFile(Other, frozen=True, kw_only=True, tag="open"):
    """Open a file with the rights of a user. A call: its descriptor."""

    uid: Uid
    what: Literal["log", "file", "folder", "copy", "copy to write"]
    path: Path


class OwnerOf(Other, frozen=True, kw_only=True, tag="owner"):
    """A call: whom a process on a GPU belongs to."""

    pid: Pid
    trusts_pids: bool


class ShimOf(Other, frozen=True, kw_only=True, tag="shim"):
    """A call: the pid of the shim of a run."""

    run: Name


class RunsContainers(Other, frozen=True, kw_only=True, tag="containers"):
    """A call: whether a process has a descendant that is a client of a container engine."""

    pid: Pid


class VisibleDevices(Other, frozen=True, kw_only=True, tag="devices"):
    """A call: the entries of CUDA_VISIBLE_DEVICES of a process."""

    pid: Pid


class ProcessOf(Other, frozen=True, kw_only=True, tag="process"):
    """A call: what /proc says about a process, where it is hidden from the scheduler (`hidepid`)."""

    pid: Pid


class LeaseHolder(Other, frozen=True, kw_only=True, tag="lease"):
    """A call: the uid of the holder of a GPU's lock."""

    gpu: Uuid


class RemoveLeases(Other, frozen=True, kw_only=True, tag="remove-leases"):
    """Remove the lock files of these GPUs that no job holds."""

    gpus: Annotated[tuple[Uuid, ...], Meta(max_length=1 << 16)]


class BindProgress(Other, frozen=True, kw_only=True, tag="bind-progress"):
    """A call: the socket for progress reports of a user's jobs."""

    uid: Uid


class RemoveProgress(Other, frozen=True, kw_only=True, tag="remove-progress"):
    """Remove the name of that socket."""

    uid: Uid


class SshFolder(Other, frozen=True, kw_only=True, tag="ssh-folder"):
    """A call: a folder of a user for the sockets of connections to clusters."""

    uid: Uid


class Listen(Other, frozen=True, kw_only=True, tag="listen"):
    """A call: the listening socket of the daemon. Users find it at its path from now on."""


class BindPort(Other, frozen=True, kw_only=True, tag="port"):
    """A call: listening sockets at a port below 1024."""

    host: Annotated[str, Meta(max_length=256)]
    port: Annotated[int, Meta(gt=0, lt=1024)]


class RunAs(Other, frozen=True, kw_only=True, tag="run-as"):
    """Run a program as a user, with three descriptors. A call: its exit code, when it has ended.

    If the socket of the call is shut, the program is killed.
    """

    uid: Uid
    user: Name
    program: Literal["ssh", "files"]
    words: Words = ()


AnyMessage = (
    Start | Exec | Stop | Signal | Adopt | Forget | Hello | EarlierEpoch | ForgetOthers | Strays | AccountOf
    | OpenFile | OwnerOf | ShimOf | RunsContainers | VisibleDevices | ProcessOf | LeaseHolder
    | RemoveLeases | BindProgress | RemoveProgress | SshFolder | Listen | BindPort | RunAs
)  # fmt: skip
_decode = msgspec.msgpack.Decoder(AnyMessage).decode
encode = msgspec.msgpack.Encoder().encode


# ---------------------------------------------------------------- to the scheduler


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `Hello`."""

    epoch: str
    # Why the devices of jobs cannot be restricted; empty: they can be.
    isolation_problem: str
    lease_folder: str
    # The folder of the jobs' files.
    job_files: str


class Stray(msgspec.Struct, frozen=True, kw_only=True):
    """A living run that the database does not know, its shim and its process."""

    name: str
    shim: tuple[str, int, int, int] | None
    job: tuple[str, int, int, int] | None


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """A call was refused: an error of the system, or a sentence."""

    errno: int = 0
    text: str = ""
    path: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """What the launcher reports."""

    key: int
    attempt: int

    @property
    def run(self) -> Run:
        return Run(JobKey(self.key), self.attempt)


class RunEnded(Event, frozen=True, kw_only=True, tag="ended"):
    """No process of a run lives any more."""

    code: int | None = None
    signal: int | None = None
    problem: str = ""
    cpu_ms: int = 0
    peak_kib: int = 0
    ago_s: float = 0.0


class RunStuck(Event, frozen=True, kw_only=True, tag="stuck"):
    """A run that was killed does not end."""

    detail: str


class RunUnclaimed(Event, frozen=True, kw_only=True, tag="unclaimed"):
    """The shim of a run ended before it began the job: it may be ordered again."""


class FolderRemoved(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="folder-removed"):
    """The run records were removed. A new epoch begins."""

    epoch: str


AnyEvent = RunEnded | RunStuck | RunUnclaimed | FolderRemoved
decode_event = msgspec.msgpack.Decoder(AnyEvent).decode


class HostLimits(NamedTuple):
    """What root's configuration sets for all jobs."""

    rules: HostRules = HostRules()
    max_processes: int = 0
    unkillable_s: int = 0


class Machine(Protocol):
    """What the launcher knows about the machine."""

    limits: HostLimits

    def leases(self, uuids: Sequence[str]) -> tuple[str, ...]:
        """Lock files of these GPUs. KeyError: there is no such GPU."""

    def device_rules(self, uuids: Sequence[str]) -> str:
        """Which devices a job with these GPUs may open; empty: all."""


def decode(data: bytes) -> AnyMessage:
    """Decode a message. ValueError: it is invalid, and its sender cannot be trusted any more."""
    if len(data) > MAX_BYTES:
        raise ValueError("the message is too long")
    try:
        message: AnyMessage = _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return message


class _Claim(msgspec.Struct, frozen=True, tag_field="do", tag="start"):
    """What tells which run a start is for, whatever its other fields hold."""

    key: Key
    attempt: Attempt


_decode_claim = msgspec.msgpack.Decoder(_Claim).decode


def claimed_run(data: bytes) -> Run:
    """The run of a start that does not decode. ValueError: it is not a start."""
    try:
        claim = _decode_claim(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return Run(JobKey(claim.key), claim.attempt)


def carry_out(message: AnyMessage, target: Target, machine: Machine) -> str | bool | None:
    """Do what a message asks of the target, which checks it. OSError, KeyError: it is refused."""
    match message:
        case Start():
            target.start(launch_of(message, machine))
        case Exec():
            return target.exec_command(launch_of(message, machine), message.words, is_tty=message.is_tty)
        case Stop():
            target.stop(message.run, now=message.now, grace_s=message.grace_s, why=message.why)
        case Signal():
            target.signal(message.run, message.number)
        case Adopt():
            return target.adopt(message.run)
        case Forget():
            for key, attempt in message.runs:
                target.forget(Run(JobKey(key), attempt))
    return None


def order_of(launch: Launch) -> dict[str, Any]:
    """The fields of an order for this launch."""
    job, spec = launch.job, launch.job.spec
    return {
        "key": job.key,
        "attempt": job.attempt,
        "uid": launch.uid,
        "user": job.user,
        "command": spec.command,
        "cwd": spec.cwd,
        "umask": spec.umask,
        "script": launch.script,
        "script_path": spec.script_path,
        "environ": launch.environ,
        "extra": launch.extra,
        "log": launch.log,
        "error_log": launch.error_log,
        "limits": spec.limits,
        "gpus": tuple(os.path.basename(path) for path in launch.leases),
        "cards": launch.cards,
        "shared": spec.shared,
        "memory_mib": spec.memory_mib,
        "cpus": spec.cpus,
        "grace_s": spec.grace_s,
        "pty": spec.pty,
        "wrapper": launch.wrapper,
    }


def launch_of(order: Order, machine: Machine) -> Launch:
    """The launch that an order asks for, with what only the launcher decides."""
    spec = Spec(
        command=order.command,
        cwd=order.cwd,
        umask=order.umask,
        script_path=order.script_path,
        limits=order.limits,
        shared=order.shared,
        memory_mib=order.memory_mib,
        cpus=order.cpus,
        grace_s=order.grace_s,
        pty=order.pty,
    )
    job = Job(
        key=JobKey(order.key),
        spec=spec,
        uid=order.uid,
        user=order.user,
        submitted_at=0.0,
        attempt=order.attempt,
    )
    return Launch(
        job=job,
        script=order.script,
        environ=order.environ,
        extra=order.extra,
        log=order.log,
        error_log=order.error_log,
        log_cap=0,
        leases=machine.leases(order.gpus),
        uid=order.uid,
        max_processes=machine.limits.max_processes,
        unkillable_s=machine.limits.unkillable_s,
        rules=machine.limits.rules,
        wrapper=order.wrapper,
        devices=machine.device_rules(order.cards),
    )
