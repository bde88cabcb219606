"""Connect standard input and output to the terminal of a job, or to the pipes of a `gjob exec` command."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gflow.client import hot_path
from gflow.wire.terminal_protocol import (
    BYE,
    CODE,
    END,
    ERROR,
    GREETING,
    HELLO,
    INPUT,
    NO_MORE,
    OUTPUT,
    SIZE,
    frame,
    frames,
)

PIECE = 1 << 16
# Bytes waiting to be sent above which no more input is read.
OUTBOX_MAX = 1 << 18
# Ctrl-\ detaches from the terminal, and the job continues, as in dtach.
LEAVE = b"\x1c"


class Detached(Exception):
    """The user detached; the job continues."""


def is_terminal() -> bool:
    return os.isatty(0) and os.isatty(1)


def relay(sock: socket.socket, *, is_tty: bool, is_host: bool, may_leave: bool) -> int | None:
    """Relay bytes until the command ends; return its exit code (negative: a signal).

    None if the connection was lost. Raises `Detached` after Ctrl-\\. `is_host`: the job gets HUP if this
    process disconnects without a goodbye, as when its own terminal is closed.
    """
    rows, columns = _size()
    hello = frame(HELLO, GREETING.pack(rows, columns, is_host))
    with _raw(is_tty), _resizing() as resized:
        return _Relay(sock, hello, is_tty=is_tty, may_leave=may_leave).run(resized)


class _Relay:
    """Relays bytes in both directions. Never blocks on one direction: the peer may block on the other."""

    def __init__(self, sock: socket.socket, hello: bytes, *, is_tty: bool, may_leave: bool) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._is_tty = is_tty
        self._may_leave = may_leave
        self._inbox, self._outbox = bytearray(), bytearray(hello)
        self._is_typing = True
        self._code: int | None = None

    def run(self, resized: int) -> int | None:
        line = self._sock.fileno()
        while True:
            has_input = self._is_typing and len(self._outbox) < OUTBOX_MAX
            reads = [line, resized] + ([0] if has_input else [])
            ready, writable, _ = select.select(reads, [line] if self._outbox else [], [])
            try:
                if resized in ready:
                    os.read(resized, 4096)
                    self._outbox += frame(SIZE, struct.pack("!HH", *_size()))
                if 0 in ready:
                    self._read_input()
                if writable:
                    self._send()
                if line in ready and not self._show():
                    return self._code
            except (BrokenPipeError, ConnectionResetError):
                return self._code

    def _send(self) -> None:
        """Send a part of the outbox. If the peer is gone, drop it; its last data must still be read."""
        try:
            del self._outbox[: self._sock.send(self._outbox[:PIECE])]
        except (BrokenPipeError, ConnectionResetError):
            self._outbox.clear()
            self._is_typing = False

    def _read_input(self) -> None:
        """Read standard input into the outbox."""
        try:
            data = os.read(0, PIECE)
        except OSError:  # our terminal is gone
            data = b""
        if self._may_leave and self._is_tty and LEAVE in data:
            self._sock.setblocking(True)
            self._sock.sendall(self._outbox + frame(INPUT, data.partition(LEAVE)[0]) + frame(BYE))
            raise Detached
        if not data and self._is_tty:
            raise ConnectionResetError("the terminal is gone")
        self._outbox += frame(INPUT, data) if data else frame(NO_MORE)
        self._is_typing = bool(data)

    def _show(self) -> bool:
        """Print received data; False at the end of the stream."""
        data = self._sock.recv(PIECE)
        self._inbox += data
        for kind, content in frames(self._inbox):
            if kind == OUTPUT:
                hot_path.write(1, content)
            elif kind == ERROR:
                hot_path.write(2, content)
            elif kind == END:
                (self._code,) = CODE.unpack(content)
        return bool(data)


def _size() -> tuple[int, int]:
    for fd in (0, 1, 2):
        with suppress(OSError):
            columns, rows = os.get_terminal_size(fd)
            return rows, columns
    return 24, 80


@contextmanager
def _raw(is_tty: bool) -> Iterator[None]:
    """Raw mode: all keys, including Ctrl-C, go to the job. Restores the terminal afterwards."""
    if not is_tty:
        yield
        return
    before = termios.tcgetattr(0)
    signal.signal(signal.SIGTERM, _leave)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # keep type-ahead for the job
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _resizing() -> Iterator[int]:
    """A descriptor that becomes readable when the window size changes."""
    reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.signal(signal.SIGWINCH, lambda *_: os.write(writes, b"w"))
    try:
        yield reads
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(reads)
        os.close(writes)
