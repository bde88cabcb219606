"""Messages of an unprivileged scheduler to the launcher, and what the launcher makes of them (ADR 12).

Nothing sends them yet: the scheduler is in the launcher's process and calls `CheckedTarget` itself. A message
names users, runs and GPUs. It cannot name a file that root opens, a limit of the machine, or a device: the
launcher fills these in (`Machine`). Folder, script and logs of a job are opened after root is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple, Protocol

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
    gpus: Annotated[tuple[Uuid, ...], Meta(max_length=4096)] = ()
    shared: bool = False
    memory_mib: Count = 0
    cpus: Count | None = None
    grace_s: Count = 30
    pty: bool = False
    wrapper: Words = ()


class Start(Order, frozen=True, kw_only=True, tag="start"):
    """Run a job."""


class Exec(Order, frozen=True, kw_only=True, tag="exec"):
    """Execute a command in a running job."""

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
    """Find a run of an earlier launcher."""


class Forget(Message, frozen=True, kw_only=True, tag="forget"):
    """Delete the files of a run that has ended."""


AnyMessage = Start | Exec | Stop | Signal | Adopt | Forget
_decode = msgspec.msgpack.Decoder(AnyMessage).decode
encode = msgspec.msgpack.Encoder().encode


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
    """Decode a message. ValueError: it is none, and its sender cannot be trusted any more."""
    if len(data) > MAX_BYTES:
        raise ValueError("the message is too long")
    try:
        message: AnyMessage = _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return message


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
            target.forget(message.run)
    return None


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
        devices=machine.device_rules(order.gpus),
    )
