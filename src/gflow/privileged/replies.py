"""Replies of the launcher to calls: a value, descriptors, or why the call failed."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gflow.errors import Refused
from gflow.privileged import channel, messages
from gflow.privileged.launcher_log import describe

log = logging.getLogger("gflow.launcher")


def reply(answers: socket.socket, value: Any, descriptors: Sequence[int] = ()) -> None:
    with suppress(OSError):  # the scheduler does not want it any more
        channel.send(answers, messages.encode((value,)), descriptors)


def reply_failure(answers: socket.socket, error: Exception, message: Any) -> None:
    """Say why a call failed. An error that is not expected is logged."""
    match error:
        case Refused():
            failure = messages.Failure(text=error.message)
        case OSError():
            path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
            failure = messages.Failure(
                errno=error.errno or errno.EINVAL, text=error.strerror or str(error), path=path
            )
        case _:
            log.error("%s: %s", describe(message), error, exc_info=error)
            failure = messages.Failure(errno=errno.EINVAL, text=str(error))
    with suppress(OSError, UnicodeEncodeError):
        channel.send(answers, messages.encode(failure))


def give_sockets(found: list[socket.socket], answers: socket.socket) -> None:
    try:
        reply(answers, True, [sock.fileno() for sock in found])
    finally:
        for sock in found:
            sock.close()
