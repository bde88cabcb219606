"""The terminal of a job, or the pipes of a command executed in a job, served on a socket to its owner.

This runs in the job's first process, as the job's owner: it starts the job's program as its child and copies
bytes. The shim created the socket, in a folder that only it can write, and gave it to the owner alone. The
daemon takes no part, so a terminal survives the daemon.

Standard library only: the shim imports this.
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
# Bytes of past output for a new client; bytes that a client may lag behind, and for how many seconds.
REPLAY = 1 << 16
BEHIND = 1 << 18
STUCK_S = 10.0
# Seconds that a command waits for its client to connect; seconds for clients to read the rest of the output.
CONNECT_S = 30.0
DRAIN_S = 5.0
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT,
             signal.SIGALRM)  # fmt: skip


def close_others(kept: set[int]) -> None:
    """Close every descriptor but these, so that the job inherits none of the shim's."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


class Client:
    """A client that is connected to the terminal."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox, self.outbox = bytearray(), bytearray()
        # Whether the job gets HUP when this client disconnects without BYE.
        self.is_host = self.has_greeted = False
        self.size = 24, 80
        self.moved_at = time.monotonic()


class Terminal:
    """The job's program on a terminal (or pipes), and the clients that are connected to it."""

    def __init__(
        self, listener: socket.socket, *, is_tty: bool, log: int | None, guard: int | None = None
    ) -> None:
        self._listener = listener
        self._is_tty = is_tty
        self._log = log
        # A pidfd of the job's process, for a command executed in a job: the command ends with that process,
        # and starts only when a client has connected.
        self._guard = guard
        self._pid = 0
        self._code: int | None = None
        self._ended_at = 0.0
        self._clients: list[Client] = []
        # Descriptors of the program's output; the one of its input, and input that it has not read yet.
        self._sources: dict[int, bytes] = {}
        self._input: int | None = None
        self._pending_input = bytearray()
        self._is_input_closed = False
        self._replay = bytearray()
        self._wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *FORWARDED):
            signal.signal(number, _wake_only)

    # ------------------------------------------------------------ the program

    def run(self, become: Callable[[], None]) -> int:
        """Start the program by `become` and serve it to its end; its exit code, negative for a signal."""
        began = time.monotonic()
        if self._guard is None:
            self._start(become)
        while not self._is_done():
            if not self._pid and any(client.has_greeted for client in self._clients):
                self._start(become)
            if not self._pid and time.monotonic() - began > CONNECT_S:
                return 0  # no client connected
            self._turn()
        assert self._code is not None
        self._send_end(self._code)
        return self._code

    def _is_done(self) -> bool:
        """Whether the program has ended and its output is read, or other processes keep the pipes open."""
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
            self._fit_terminal(client)
        return [slave] * 3, [master]

    def _open_pipes(self) -> tuple[list[int], list[int]]:
        (stdin, write_end), (out, stdout), (error, stderr) = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
        self._sources, self._input = {out: OUTPUT, error: ERROR}, write_end
        return [stdin, stdout, stderr], [write_end, out, error]

    # ------------------------------------------------------------ one turn

    def _turn(self) -> None:
        poll = select.poll()
        for fd, events in self._interests().items():
            poll.register(fd, events)
        by_fd = {client.sock.fileno(): client for client in self._clients}
        for fd, event in poll.poll(1000 if self._pid else 200):
            if fd == self._wake:
                self._handle_signals()
            elif fd == self._listener.fileno():
                self._accept()
            elif fd == self._guard:
                self._hang_up(signal.SIGKILL)
            elif fd in by_fd:
                self._serve(by_fd[fd], event)
            else:
                self._transfer(fd, event)
        self._drop_stuck_clients()

    def _interests(self) -> dict[int, int]:
        """Descriptors to poll. The program's output is not read while a client is far behind."""
        wanted = {self._wake: select.POLLIN, self._listener.fileno(): select.POLLIN}
        if self._guard is not None and self._code is None:
            wanted[self._guard] = select.POLLIN
        is_behind = any(len(client.outbox) > BEHIND for client in self._clients)
        for fd in self._sources:
            wanted[fd] = 0 if is_behind else select.POLLIN
        if self._input is not None and (self._pending_input or self._is_input_closed):
            wanted[self._input] = wanted.get(self._input, 0) | select.POLLOUT
        for client in self._clients:
            reads = select.POLLIN if len(self._pending_input) < BEHIND else 0
            wanted[client.sock.fileno()] = reads | (select.POLLOUT if client.outbox else 0)
        return {fd: events for fd, events in wanted.items() if events or fd not in self._sources}

    def _handle_signals(self) -> None:
        """Handle signals: reap on CHLD, forward the others to the job."""
        for number in os.read(self._wake, 4096):
            if number == signal.SIGCHLD:
                self._reap()
            elif self._pid and self._code is None:
                self._forward(number)

    def _forward(self, number: int) -> None:
        """Signal the program, whose pid is valid until we reap it, and the terminal's foreground group."""
        if self._code is not None:
            return
        send_group(self._pid, number)
        if self._is_tty and self._input is not None:
            with suppress(OSError):
                self._signal_foreground(os.tcgetpgrp(self._input), number)
        if number == signal.SIGTERM and self._is_tty and _ignores(self._pid, number):
            send_group(self._pid, signal.SIGHUP)  # an interactive shell exits on HUP only

    def _signal_foreground(self, group: int, number: int) -> None:
        """Signal the foreground group. Its id may have been reused, but not in the program's session."""
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

    def _transfer(self, fd: int, event: int) -> None:
        if event & select.POLLOUT and fd == self._input:
            self._write_input()
        if fd in self._sources and event & (select.POLLIN | select.POLLHUP | select.POLLERR):
            try:
                data = os.read(fd, PIECE)
            except BlockingIOError:
                return
            except OSError:  # the terminal's other side is closed
                data = b""
            self._broadcast(self._sources[fd], data) if data else self._close(fd)

    def _broadcast(self, kind: bytes, data: bytes) -> None:
        if self._log is not None:
            with suppress(OSError):  # a full disk does not stop the job
                os.write(self._log, data)
        if self._is_tty:
            self._replay += data
            del self._replay[:-REPLAY]
        for client in self._clients:
            if client.has_greeted:
                client.outbox += frame(kind, data)

    def _write_input(self) -> None:
        """Write pending input to the program."""
        assert self._input is not None
        try:
            if self._pending_input:
                del self._pending_input[: os.write(self._input, self._pending_input[:PIECE])]
        except BlockingIOError:
            return
        except OSError:
            self._pending_input.clear()
            self._is_input_closed = True
        if self._is_input_closed and not self._pending_input and not self._is_tty:
            self._close(self._input)

    def _close(self, fd: int) -> None:
        self._sources.pop(fd, None)
        if fd == self._input:
            self._input, self._pending_input = None, bytearray()
        os.close(fd)

    # ------------------------------------------------------------ clients

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
                    self._disconnect(client)
                    return
                client.inbox += data
                for kind, content in frames(client.inbox):
                    self._handle_frame(client, kind, content)
        except BlockingIOError:
            return
        except (OSError, ValueError, struct.error):
            self._disconnect(client)

    def _handle_frame(self, client: Client, kind: bytes, content: bytes) -> None:
        if kind == HELLO:
            rows, columns, client.is_host = GREETING.unpack(content)
            client.size = rows, columns
            client.has_greeted = True
            client.outbox += frame(OUTPUT, bytes(self._replay)) if self._replay else b""
            if self._pid:
                self._fit_terminal(client)
        elif kind == INPUT and self._code is None and not self._is_input_closed:
            self._pending_input += content
        elif kind == SIZE:
            self._resize(*struct.unpack("!HH", content))
        elif kind == NO_MORE and not self._is_tty:
            self._is_input_closed = True
        elif kind == BYE:
            client.is_host = False
            self._disconnect(client)

    def _fit_terminal(self, client: Client) -> None:
        """Set the terminal's size to that of a new client, and make programs redraw."""
        if client.has_greeted and self._is_tty:
            self._resize(*client.size)
            self._forward(signal.SIGWINCH)

    def _resize(self, rows: int, columns: int) -> None:
        if self._is_tty and self._input is not None and rows and columns:
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _disconnect(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            client.sock.close()
            if client.is_host and self._code is None:
                self._hang_up(signal.SIGHUP)

    def _hang_up(self, number: int) -> None:
        """Hang up: signal the program and close its terminal."""
        if not self._pid:  # the program never started
            os._exit(0)
        self._forward(number)
        for fd in {*self._sources, *([] if self._input is None else [self._input])}:
            self._close(fd)
        if self._guard is not None:
            os.close(self._guard)
            self._guard = None

    def _drop_stuck_clients(self) -> None:
        now = time.monotonic()
        for client in list(self._clients):
            if not client.outbox:
                client.moved_at = now
            elif now - client.moved_at > STUCK_S and len(client.outbox) > BEHIND:
                client.is_host = False  # connected but not reading: drop it without hanging up the job
                self._disconnect(client)

    def _send_end(self, code: int) -> None:
        """Send all clients the rest of the output and the exit code."""
        until = time.monotonic() + DRAIN_S
        for client in self._clients:
            client.sock.settimeout(max(0.01, until - time.monotonic()))
            with suppress(OSError):
                client.sock.sendall(client.outbox + frame(END, CODE.pack(code)))
            client.sock.close()


def exit_like(code: int) -> None:
    """End this process as the program ended: with its exit code, or by its signal."""
    if code >= 0:
        os._exit(code)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _ignores(pid: int, number: int) -> bool:
    """Whether a process ignores this signal, as interactive shells do."""
    try:
        with open(f"/proc/{pid}/status") as file:
            words = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return False
    return bool(int(words.get("SigIgn", "0"), 16) >> (number - 1) & 1)


def _wake_only(_number: int, _frame: object) -> None:
    """Signal handler that does nothing: the interpreter has written the number to the wake-up pipe."""
