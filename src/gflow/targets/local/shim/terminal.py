"""A terminal for a job, or pipes for a command beside it, and a socket by which its owner reaches them.

This runs in the job's first process, as the job's owner: it starts the job's own program as its child and
carries bytes. The shim made the socket, in a folder where nobody else can, and gave it to the owner alone;
the daemon has no part in it, so a terminal outlives daemons.

Standard library only: this runs beside jobs.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress

from gflow.targets.local.shim.process_tree import send_group, send_members
from gflow.wire.terminal_protocol import (
    BYE,
    CODE,
    END,
    ERROR,
    GREETING,
    HELLO,
    INPUT,
    MOST_CLIENTS,
    NO_MORE,
    OUTPUT,
    SIZE,
    frame,
    frames,
)

PIECE = 1 << 16
# How much of the past a newcomer is shown; how far a client may be behind, and for how long.
REPLAY = 1 << 16
BEHIND = 1 << 18
STUCK_S = 10.0
# How long a command waits for the client that asked for it; and clients have to take the rest of the output.
COMING_S = 30.0
FAREWELL_S = 5.0
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT,
             signal.SIGALRM)  # fmt: skip


def close_others(kept: set[int]) -> None:
    """Close every descriptor but these: what a shim has open is none of the job's business."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


class Client:
    """Somebody at the terminal."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox, self.outbox = bytearray(), bytearray()
        # Whether the job is hung up when this one goes without a word.
        self.is_host = self.has_greeted = False
        self.size = 24, 80
        self.moved_at = time.monotonic()


class Terminal:
    """The job's program at a terminal (or pipes), and whoever looks at it."""

    def __init__(
        self, listener: socket.socket, *, is_tty: bool, log: int | None, guard: int | None = None
    ) -> None:
        self._listener = listener
        self._is_tty = is_tty
        self._log = log
        # A pidfd of the process whose end is ours too; then the program waits for somebody to come first.
        self._guard = guard
        self._pid = 0
        self._code: int | None = None
        self._ended_at = 0.0
        self._clients: list[Client] = []
        # What the program writes, by descriptor; where it reads, and what it has not read yet.
        self._sources: dict[int, bytes] = {}
        self._input: int | None = None
        self._typed = bytearray()
        self._no_more = False
        self._past = bytearray()
        self._wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *FORWARDED):
            signal.signal(number, _noted)

    # ------------------------------------------------------------ the program

    def run(self, become: Callable[[], None]) -> int:
        """Start what `become` becomes and see it through; its code, negative for a signal."""
        began = time.monotonic()
        if self._guard is None:
            self._start(become)
        while not self._is_done():
            if not self._pid and any(client.has_greeted for client in self._clients):
                self._start(become)
            if not self._pid and time.monotonic() - began > COMING_S:
                return 0  # nobody came
            self._turn()
        assert self._code is not None
        self._say_goodbye(self._code)
        return self._code

    def _is_done(self) -> bool:
        """The program is over, and all that it wrote has been read (or others hold on to its pipes)."""
        return self._code is not None and (not self._sources or time.monotonic() - self._ended_at > 1.0)

    def _start(self, become: Callable[[], None]) -> None:
        if self._is_tty:
            inner, outer = self._open_terminal()
        else:
            inner, outer = self._open_pipes()
        self._pid = os.fork()
        if self._pid == 0:
            signal.set_wakeup_fd(-1)
            os.setsid()
            if self._is_tty:
                fcntl.ioctl(inner[0], termios.TIOCSCTTY, 0)
            for to, fd in enumerate(inner):
                os.dup2(fd, to)
            become()
        for fd in set(inner):
            os.close(fd)
        for fd in outer:
            os.set_blocking(fd, False)

    def _open_terminal(self) -> tuple[list[int], list[int]]:
        master, slave = os.openpty()
        self._sources, self._input = {master: OUTPUT}, master
        self._resize(24, 80)
        for client in self._clients:
            self._greet(client)
        return [slave] * 3, [master]

    def _open_pipes(self) -> tuple[list[int], list[int]]:
        (stdin, typed), (out, stdout), (error, stderr) = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
        self._sources, self._input = {out: OUTPUT, error: ERROR}, typed
        return [stdin, stdout, stderr], [typed, out, error]

    # ------------------------------------------------------------ one turn

    def _turn(self) -> None:
        poll = select.poll()
        for fd, events in self._interests().items():
            poll.register(fd, events)
        by_fd = {client.sock.fileno(): client for client in self._clients}
        for fd, event in poll.poll(1000 if self._pid else 200):
            if fd == self._wake:
                self._hear()
            elif fd == self._listener.fileno():
                self._accept()
            elif fd == self._guard:
                self._hang_up(signal.SIGKILL)
            elif fd in by_fd:
                self._serve(by_fd[fd], event)
            else:
                self._carry(fd, event)
        self._drop_the_stuck()

    def _interests(self) -> dict[int, int]:
        """What is to be waited for. Nobody reads on while those who listen are far behind."""
        wanted = {self._wake: select.POLLIN, self._listener.fileno(): select.POLLIN}
        if self._guard is not None and self._code is None:
            wanted[self._guard] = select.POLLIN
        is_behind = any(len(client.outbox) > BEHIND for client in self._clients)
        for fd in self._sources:
            wanted[fd] = 0 if is_behind else select.POLLIN
        if self._input is not None and (self._typed or self._no_more):
            wanted[self._input] = wanted.get(self._input, 0) | select.POLLOUT
        for client in self._clients:
            reads = select.POLLIN if len(self._typed) < BEHIND else 0
            wanted[client.sock.fileno()] = reads | (select.POLLOUT if client.outbox else 0)
        return {fd: events for fd, events in wanted.items() if events or fd not in self._sources}

    def _hear(self) -> None:
        """Signals: of children that ended, and those that are meant for the job."""
        for number in os.read(self._wake, 4096):
            if number == signal.SIGCHLD:
                self._reap()
            elif self._pid and self._code is None:
                self._forward(number)

    def _forward(self, number: int) -> None:
        """Signal the program and what has the terminal now. Until we reap it, its numbers are its own."""
        if self._code is not None:
            return
        send_group(self._pid, number)
        if self._is_tty and self._input is not None:
            with suppress(OSError):
                self._signal_foreground(os.tcgetpgrp(self._input), number)
        if number == signal.SIGTERM and self._is_tty and _ignores(self._pid, number):
            send_group(self._pid, signal.SIGHUP)  # an interactive shell leaves for this only

    def _signal_foreground(self, group: int, number: int) -> None:
        """That group may have ended, and its number be in use elsewhere; not in the program's session."""
        if group != self._pid:
            ours = self._pid
            send_members(number, lambda stat: stat.group == group and stat.session == ours)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._pid:
                    self._code = os.waitstatus_to_exitcode(found[1])
                    self._ended_at = time.monotonic()

    # ------------------------------------------------------------ bytes

    def _carry(self, fd: int, event: int) -> None:
        if event & select.POLLOUT and fd == self._input:
            self._type()
        if fd in self._sources and event & (select.POLLIN | select.POLLHUP | select.POLLERR):
            try:
                data = os.read(fd, PIECE)
            except BlockingIOError:
                return
            except OSError:  # the terminal's other side is closed
                data = b""
            self._spread(self._sources[fd], data) if data else self._close(fd)

    def _spread(self, kind: bytes, data: bytes) -> None:
        if self._log is not None:
            with suppress(OSError):  # a full disk does not stop the job
                os.write(self._log, data)
        if self._is_tty:
            self._past += data
            del self._past[:-REPLAY]
        for client in self._clients:
            if client.has_greeted:
                client.outbox += frame(kind, data)

    def _type(self) -> None:
        """Hand on what people typed."""
        assert self._input is not None
        try:
            if self._typed:
                del self._typed[: os.write(self._input, self._typed[:PIECE])]
        except BlockingIOError:
            return
        except OSError:
            self._typed.clear()
            self._no_more = True
        if self._no_more and not self._typed and not self._is_tty:
            self._close(self._input)

    def _close(self, fd: int) -> None:
        self._sources.pop(fd, None)
        if fd == self._input:
            self._input, self._typed = None, bytearray()
        os.close(fd)

    # ------------------------------------------------------------ people

    def _accept(self) -> None:
        with suppress(OSError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid not in (os.getuid(), 0) or len(self._clients) >= MOST_CLIENTS:
                sock.close()
                return
            self._clients.append(Client(sock))

    def _serve(self, client: Client, event: int) -> None:
        try:
            if event & select.POLLOUT:
                sent = client.sock.send(client.outbox[:PIECE])
                del client.outbox[:sent]
                client.moved_at = time.monotonic()
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = client.sock.recv(PIECE)
                if not data:
                    self._leave(client)
                    return
                client.inbox += data
                for kind, content in frames(client.inbox):
                    self._obey(client, kind, content)
        except BlockingIOError:
            return
        except (OSError, ValueError, struct.error):
            self._leave(client)

    def _obey(self, client: Client, kind: bytes, content: bytes) -> None:
        if kind == HELLO:
            rows, columns, client.is_host = GREETING.unpack(content)
            client.size = rows, columns
            client.has_greeted = True
            client.outbox += frame(OUTPUT, bytes(self._past)) if self._past else b""
            if self._pid:
                self._greet(client)
        elif kind == INPUT and self._code is None and not self._no_more:
            self._typed += content
        elif kind == SIZE:
            self._resize(*struct.unpack("!HH", content))
        elif kind == NO_MORE and not self._is_tty:
            self._no_more = True
        elif kind == BYE:
            client.is_host = False
            self._leave(client)

    def _greet(self, client: Client) -> None:
        """Fit the terminal to a newcomer, and let programs draw themselves anew."""
        if client.has_greeted and self._is_tty:
            self._resize(*client.size)
            self._forward(signal.SIGWINCH)

    def _resize(self, rows: int, columns: int) -> None:
        if self._is_tty and self._input is not None and rows and columns:
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _leave(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            client.sock.close()
            if client.is_host and self._code is None:
                self._hang_up(signal.SIGHUP)

    def _hang_up(self, number: int) -> None:
        """As if the line was cut: the program hears of it, and there is no terminal any more."""
        if not self._pid:  # it never began
            os._exit(0)
        self._forward(number)
        for fd in {*self._sources, *([] if self._input is None else [self._input])}:
            self._close(fd)
        if self._guard is not None:
            os.close(self._guard)
            self._guard = None

    def _drop_the_stuck(self) -> None:
        now = time.monotonic()
        for client in list(self._clients):
            if not client.outbox:
                client.moved_at = now
            elif now - client.moved_at > STUCK_S and len(client.outbox) > BEHIND:
                client.is_host = False  # it is there, and does not read: the job goes on without it
                self._leave(client)

    def _say_goodbye(self, code: int) -> None:
        """Let everybody have the rest, and how it ended."""
        until = time.monotonic() + FAREWELL_S
        for client in self._clients:
            client.sock.settimeout(max(0.01, until - time.monotonic()))
            with suppress(OSError):
                client.sock.sendall(client.outbox + frame(END, CODE.pack(code)))
            client.sock.close()


def end_like(code: int) -> None:
    """End as the program did: with its code, or by its signal."""
    if code >= 0:
        os._exit(code)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _ignores(pid: int, number: int) -> bool:
    """Whether a process ignores this signal, or catches it without leaving as shells do."""
    try:
        with open(f"/proc/{pid}/status") as file:
            words = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return False
    return bool(int(words.get("SigIgn", "0"), 16) >> (number - 1) & 1)


def _noted(_number: int, _frame: object) -> None:
    """The number is already in the wake-up pipe."""
