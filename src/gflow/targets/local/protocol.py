"""The protocol between daemon and shim: the message format, and the order to run a job.

A message is a length and fields, each a length and bytes. Both ends are the same build of gflow; data that
must survive an upgrade is in the run record instead. `native/messages.c` implements the same format, and
`native/shim.h` lists the same fields of an order. A test runs the same jobs through both shims.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

LENGTH = 4
_length = struct.Struct("<I").pack


def pack(fields: Sequence[bytes]) -> bytes:
    parts = [b""] * (2 * len(fields))
    parts[::2] = map(_length, map(len, fields))
    parts[1::2] = fields
    body = b"".join(parts)
    return _length(len(body)) + body


def unpack(buffer: bytearray) -> list[list[bytes]]:
    """Remove all complete messages from `buffer` and return their fields."""
    messages = []
    while len(buffer) >= LENGTH:
        end = LENGTH + int.from_bytes(buffer[:LENGTH], "little")
        if len(buffer) < end:
            break
        messages.append(_fields(bytes(buffer[LENGTH:end])))
        del buffer[:end]
    return messages


def _fields(body: bytes) -> list[bytes]:
    fields, at = [], 0
    while at < len(body):
        start = at + LENGTH
        at = start + int.from_bytes(body[at:start], "little")
        fields.append(body[start:at])
    return fields


Limits = tuple[tuple[int, int, int], ...]


class Order(NamedTuple):
    """Everything a shim needs for one attempt of a job. User text is bytes: it may not be valid UTF-8."""

    key: int
    attempt: int
    record: str
    cwd: str
    umask: int
    log: str
    error_log: str
    log_cap: int
    grace_s: float
    stop_file: str
    memory_mib: int
    cpus: int
    # Resource limits: (number, soft, hard), -1 unlimited.
    limits: Limits
    leases: tuple[str, ...]
    # The daemon's name in shared leases, for a job that shares its GPUs; empty: exclusive GPUs.
    sharing: str
    command: tuple[str, ...]
    script: bytes | None
    script_path: str
    # NUL-terminated `NAME=value` strings: the submitter's variables, and gflow's.
    environ: bytes
    extra: bytes
    # The uid that the job runs as, if the shim is root; None: that of the shim.
    uid: int | None
    # Path for a copy of the script if the original has changed.
    snapshot: str
    # The socket of the job's terminal; empty: it has none.
    terminal: str = ""
    # For a command executed in a running job: `pty` or `pipes`, pid and start time of the job's process, and
    # names of its control groups.
    exec_job: tuple[str, ...] = ()
    # Maximum number of processes and threads; 0: unlimited.
    max_processes: int = 0
    # Seconds after KILL at which a process that still lives is reported; 0: never.
    unkillable_s: int = 0
    # The name of the account that `uid` must have; empty: any.
    user: str = ""
    # Which devices it may open (`native/devices.c`); empty: all.
    devices: str = ""
    # Memory limit if `memory_mib` is 0; 0: none. `memory_advice`: a job over it only gets a line in its log.
    default_memory: int = 0
    memory_advice: bool = False
    # Whether it gets at most the CPU time of `cpus`.
    cpu_quota: bool = False
    # Its out-of-memory score, if that is higher than ours.
    oom_score: int = 0
    # The folder that it sees as /tmp; empty: everybody's.
    private_tmp: str = ""
    # Words before the interpreter of its script: what runs it in a container.
    wrapper: tuple[str, ...] = ()

    @property
    def limit_mib(self) -> int:
        """The memory limit at which the job ends; 0: none."""
        return self.memory_mib or (0 if self.memory_advice else self.default_memory)

    @property
    def fits_native(self) -> bool:
        """Whether the native shim can run it: no memory or CPU limit, no shared leases and at most 64, no
        terminal."""
        return not (self.memory_mib or self.cpus or self.sharing or self.terminal or len(self.leases) > 64)


def to_fields(order: Order) -> list[bytes]:
    """The message that hands this order to a shim."""
    # One call encodes all texts, none of which can contain NUL.
    texts = (order.record, order.cwd, order.log, order.error_log, order.stop_file, order.sharing,
             order.script_path, order.snapshot, order.terminal, order.user, order.devices,
             order.private_tmp)  # fmt: skip
    (record, cwd, log, error_log, stop_file, sharing, script_path, snapshot, terminal, user, devices,
     private_tmp) = os.fsencode("\0".join(texts)).split(b"\0")  # fmt: skip
    return [
        b"run",
        b"%d" % order.key,
        b"%d" % order.attempt,
        record,
        cwd,
        b"%d" % order.umask,
        log,
        error_log,
        b"%d" % order.log_cap,
        b"%g" % order.grace_s,
        stop_file,
        b"%d" % order.memory_mib,
        b"%d" % order.cpus,
        b"".join([b"%d %d %d\n" % limit for limit in order.limits]),
        join_strings(order.leases),
        sharing,
        join_strings(order.command),
        b"0" if order.script is None else b"1",
        order.script or b"",
        script_path,
        order.environ,
        order.extra,
        b"" if order.uid is None else b"%d" % order.uid,
        snapshot,
        terminal,
        join_strings(order.exec_job),
        b"%d" % order.max_processes,
        b"%d" % order.unkillable_s,
        user,
        devices,
        b"%d" % order.default_memory,
        b"%d" % order.memory_advice,
        b"%d" % order.cpu_quota,
        b"%d" % order.oom_score,
        private_tmp,
        join_strings(order.wrapper),
    ]


def from_fields(fields: list[bytes]) -> Order:
    text = os.fsdecode
    # A native shim that started before an upgrade may hand over an order without the last fields.
    fields = fields + [b""] * (len(Order._fields) + 2 - len(fields))
    (_, key, attempt, record, cwd, umask, log, error_log, log_cap, grace_s, stop_file, memory_mib, cpus,
     limits, leases, sharing, command, has_script, script, script_path, environ, extra, uid,
     snapshot, terminal, exec_job, max_processes, unkillable_s, user, devices, default_memory,
     memory_advice, cpu_quota, oom_score, private_tmp, wrapper) = fields  # fmt: skip
    return Order(
        key=int(key),
        attempt=int(attempt),
        record=text(record),
        cwd=text(cwd),
        umask=int(umask),
        log=text(log),
        error_log=text(error_log),
        log_cap=int(log_cap),
        grace_s=float(grace_s),
        stop_file=text(stop_file),
        memory_mib=int(memory_mib),
        cpus=int(cpus),
        limits=tuple(_limit(line) for line in limits.splitlines()),
        leases=tuple(map(text, split_strings(leases))),
        sharing=text(sharing),
        command=tuple(map(text, split_strings(command))),
        script=script if has_script == b"1" else None,
        script_path=text(script_path),
        environ=environ,
        extra=extra,
        uid=int(uid) if uid else None,
        snapshot=text(snapshot),
        terminal=text(terminal),
        exec_job=tuple(map(text, split_strings(exec_job))),
        max_processes=int(max_processes),
        unkillable_s=int(unkillable_s),
        user=text(user),
        devices=text(devices),
        default_memory=int(default_memory or 0),
        memory_advice=memory_advice == b"1",
        cpu_quota=cpu_quota == b"1",
        oom_score=int(oom_score or 0),
        private_tmp=text(private_tmp),
        wrapper=tuple(map(text, split_strings(wrapper))),
    )


def _limit(line: bytes) -> tuple[int, int, int]:
    number, soft, hard = map(int, line.split())
    return number, soft, hard


def join_strings(strings: Sequence[str]) -> bytes:
    """Strings as a block of NUL-terminated strings. No string can contain NUL."""
    return os.fsencode("\0".join((*strings, ""))) if strings else b""


def split_strings(block: bytes) -> list[bytes]:
    """The strings of a block of NUL-terminated strings."""
    return block.split(b"\0")[:-1]
