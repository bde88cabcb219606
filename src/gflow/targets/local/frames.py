"""Messages between daemon and shim: a length, then a marshalled value.

Both ends are the same build of the same program; what must outlive a build is in the
run record, not here.
"""

from __future__ import annotations

import marshal
from typing import Any

HEADER = 4


def pack(message: Any) -> bytes:
    body = marshal.dumps(message)
    return len(body).to_bytes(HEADER, "little") + body


def unpack(buffer: bytearray) -> list[Any]:
    """Take all whole messages out of `buffer`."""
    messages = []
    while len(buffer) >= HEADER:
        end = HEADER + int.from_bytes(buffer[:HEADER], "little")
        if len(buffer) < end:
            break
        messages.append(marshal.loads(bytes(buffer[HEADER:end])))
        del buffer[:end]
    return messages
