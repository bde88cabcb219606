"""The scheduler's end of the channel to the launcher: orders, calls that are answered, and events.

If the launcher has ended, this process ends at once, before the kernel kills it: an order that did not arrive
must not become the failure of a job.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import msgspec

from gflow.errors import Refused
from gflow.privileged import channel, messages
from gflow.privileged.messages import AnyEvent, AnyMessage, Failure, Greeting, Hello

log = logging.getLogger("gflow.daemon")
# Events that are read before other work of the loop goes on.
AT_ONCE = 64
T = TypeVar("T")


class Link:
    """The channel. `post` is called by the loop's thread, `call` by any."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Orders that did not fit into the channel.
        self._waiting: deque[bytes] = deque()
        self.greeting = self.call(Hello(), Greeting)

    def listen(self, on_event: Callable[[AnyEvent], None]) -> None:
        """Pass events on, from now on."""
        asyncio.get_running_loop().add_reader(self._sock, self._readable, on_event)

    def close(self) -> None:
        """Send what waits, and report no event any more."""
        asyncio.get_running_loop().remove_reader(self._sock)
        self._flush()

    def post(self, message: AnyMessage) -> None:
        """Send an order, without waiting. OSError: the launcher would not take it."""
        data = _encode(message)
        if not self._waiting:
            try:
                _send(self._sock, data)
                return
            except BlockingIOError:
                asyncio.get_running_loop().add_writer(self._sock, self._writable)
        self._waiting.append(data)

    def call(self, message: AnyMessage, kind: type[T]) -> T:
        """Send a call and wait for its answer. OSError, Refused: it failed."""
        with self.begin(message) as answers:
            return read_answer(answers, kind)[0]

    def call_for_files(self, message: AnyMessage) -> list[int]:
        """A call whose answer is descriptors."""
        with self.begin(message) as answers:
            return read_answer(answers, bool)[1]

    def begin(self, message: AnyMessage, descriptors: Sequence[int] = ()) -> socket.socket:
        """Send a call. Its answers come on this socket."""
        data = _encode(message)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._send_now(data, [theirs.fileno(), *descriptors])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _send_now(self, data: bytes, descriptors: Sequence[int]) -> None:
        """Send after all orders that wait."""
        self._flush()
        while True:
            try:
                _send(self._sock, data, descriptors)
                return
            except BlockingIOError:
                select.select([], [self._sock], [])

    def _flush(self) -> None:
        while self._waiting:
            try:
                _send(self._sock, self._waiting[0])
                self._waiting.popleft()
            except BlockingIOError:
                select.select([], [self._sock], [])
            except IndexError:  # another thread has sent it
                return

    def _writable(self) -> None:
        while self._waiting:
            try:
                _send(self._sock, self._waiting[0])
            except BlockingIOError:
                return
            self._waiting.popleft()
        asyncio.get_running_loop().remove_writer(self._sock)

    def _readable(self, on_event: Callable[[AnyEvent], None]) -> None:
        for _ in range(AT_ONCE):
            try:
                packet = channel.receive(self._sock, messages.MAX_BYTES)
            except BlockingIOError:
                return
            if packet is None:
                _end()
            on_event(messages.decode_event(packet.data))


def _end() -> NoReturn:
    """End this process. The next launcher starts another scheduler."""
    log.error("the launcher has ended")
    os._exit(1)


def _send(sock: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    try:
        channel.send(sock, data, descriptors)
    except ConnectionError:
        _end()


def _encode(message: AnyMessage) -> bytes:
    """Encode a message. OSError: the launcher would take it for an attack and end this process.

    It refuses a start whose fields are out of bounds, which users may cause; so those are not checked twice.
    """
    try:
        data = messages.encode(message)
        if type(message) is not messages.Start:
            messages.decode(data)
    except (ValueError, UnicodeEncodeError) as error:
        raise OSError(f"it cannot be passed to the launcher: {error}") from None
    return data


def read_answer(answers: socket.socket, kind: type[T]) -> tuple[T, list[int]]:
    """Wait for an answer of this type. OSError, Refused: the call failed."""
    answers.setblocking(True)
    packet = channel.receive(answers, messages.MAX_BYTES)
    if packet is None:
        _end()
    found = msgspec.msgpack.decode(packet.data, type=Failure | tuple[kind])  # type: ignore[valid-type]
    if isinstance(found, Failure):
        raise error_of(found)
    value: T = found[0]
    return value, packet.descriptors


def error_of(failure: Failure) -> Exception:
    """The error that a call failed with."""
    if not failure.errno:
        return Refused(failure.text)
    return OSError(failure.errno, failure.text, failure.path)
