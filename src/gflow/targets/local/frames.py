"""Messages between daemon and shim: a length, then fields, each a length and bytes.

Both ends are the same build of the same program; what must outlive a build is in the
run record, not here. `plain/messages.c` reads and writes the same.
"""

from __future__ import annotations

from collections.abc import Iterable

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
