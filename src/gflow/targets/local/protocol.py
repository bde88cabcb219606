"""Messages between daemon and shim: a length, then fields, each a length and bytes.

Both ends are the same build of the same program; what must outlive a build is in the
run record, not here. `plain/messages.c` reads and writes the same.

An order: everything a shim needs to run a job, as a record and as fields of a message.

The fields, their order and their form are known to `plain/shim.h` too; a test runs the same
jobs through both shims.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

LENGTH = 4


def pack(fields: Iterable[bytes]) -> bytes:
    body = b"".join([part for field in fields for part in (len(field).to_bytes(LENGTH, "little"), field)])
    return len(body).to_bytes(LENGTH, "little") + body


def unpack(buffer: bytearray) -> list[list[bytes]]:
    """Take all whole messages out of `buffer`."""
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
    """One attempt of one job. What people wrote is bytes: it need not be valid text."""

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
    # The daemon's name among those that lease, for a job that shares its GPUs; empty: it has them alone.
    sharing: str
    command: tuple[str, ...]
    script: bytes | None
    script_path: str
    # Blocks of `NAME=value`, each ended by a zero: the submitter's variables, and ours.
    environ: bytes
    extra: bytes
    # Whom the job runs as, if the shim is root and it is somebody's; None: as the shim.
    uid: int | None
    # Where the script is copied to if the original changed.
    snapshot: str
    # The socket of the job's terminal; empty: it has none.
    terminal: str = ""
    # For a command beside a job that runs: `pty` or `pipes`, the job's process (its pid and when it
    # started), names of its control groups.
    beside: tuple[str, ...] = ()
    # How many processes and threads it may have at once; 0: any number.
    max_processes: int = 0
    # Seconds after KILL at which a process that still lives is reported; 0: never.
    unkillable_s: int = 0
    # The name of the account that `uid` must have; empty: any.
    user: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether the plain shim can run it: no control group with limits, no shared or countless leases, no
        terminal."""
        return not (self.memory_mib or self.cpus or self.sharing or self.terminal or len(self.leases) > 64)


def to_fields(order: Order) -> list[bytes]:
    """The message that hands this order to a shim."""
    text = os.fsencode
    return [
        b"run",
        b"%d" % order.key,
        b"%d" % order.attempt,
        text(order.record),
        text(order.cwd),
        b"%d" % order.umask,
        text(order.log),
        text(order.error_log),
        b"%d" % order.log_cap,
        b"%g" % order.grace_s,
        text(order.stop_file),
        b"%d" % order.memory_mib,
        b"%d" % order.cpus,
        b"".join([b"%d %d %d\n" % limit for limit in order.limits]),
        ended(order.leases),
        text(order.sharing),
        ended(order.command),
        b"0" if order.script is None else b"1",
        order.script or b"",
        text(order.script_path),
        order.environ,
        order.extra,
        b"" if order.uid is None else b"%d" % order.uid,
        text(order.snapshot),
        text(order.terminal),
        ended(order.beside),
        b"%d" % order.max_processes,
        b"%d" % order.unkillable_s,
        text(order.user),
    ]


def from_fields(fields: list[bytes]) -> Order:
    text = os.fsdecode
    (_, key, attempt, record, cwd, umask, log, error_log, log_cap, grace_s, stop_file, memory_mib, cpus,
     limits, leases, sharing, command, has_script, script, script_path, environ, extra, uid,
     snapshot, terminal, beside, max_processes, unkillable_s, user) = fields  # fmt: skip
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
        leases=tuple(map(text, parts(leases))),
        sharing=text(sharing),
        command=tuple(map(text, parts(command))),
        script=script if has_script == b"1" else None,
        script_path=text(script_path),
        environ=environ,
        extra=extra,
        uid=int(uid) if uid else None,
        snapshot=text(snapshot),
        terminal=text(terminal),
        beside=tuple(map(text, parts(beside))),
        max_processes=int(max_processes),
        unkillable_s=int(unkillable_s),
        user=text(user),
    )


def _limit(line: bytes) -> tuple[int, int, int]:
    number, soft, hard = map(int, line.split())
    return number, soft, hard


def ended(strings: Iterable[str]) -> bytes:
    """Strings as a block, each ended by a zero: none of them can hold one."""
    return os.fsencode("".join([string + "\0" for string in strings]))


def parts(block: bytes) -> list[bytes]:
    """The strings of a block."""
    return block.split(b"\0")[:-1]
