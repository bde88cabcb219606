"""The daemon's shims: a zygote that makes them, a channel to each, those that are idle."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from gflow.targets.local.cgroups import Layers, find_layers, remove_layers, sweep_others, sweep_shims
from gflow.targets.local.protocol import pack, unpack
from gflow.targets.local.zygote import PLAIN, UNBORN
from gflow.targets.port import Run

# Idle shims kept for the next job. A plain one (True) takes a quarter of a megabyte, the other two.
IDLE_MAX = {True: 16, False: 4}
# Those over that number go when they were of no use for so long: many jobs that end together are
# mostly followed by as many that start.
SPARE_S = 2.0
DISMISS_S = 2.0
# When to look again at what a shim left that died: its children and its parent may take a moment to notice.
SWEEP_AFTER_S = (0.2, 1.0, 5.0)


class Channel:
    """Our end of one shim's channel, and the run it is busy with."""

    def __init__(self, sock: socket.socket, *, plain: bool) -> None:
        self.sock = sock
        self.plain = plain
        self.buffer = bytearray()
        self.run: Run | None = None
        # Whether the shim goes after the job it has.
        self.retires = False


class Shims:
    """Makes shims, keeps some idle, hears what they say. All methods are called from the daemon's loop."""

    def __init__(
        self,
        folder: str,
        tag: str,
        hear: Callable[[Channel, list[bytes]], None],
        lost: Callable[[Run], None],
        unborn: Callable[[Run, str], None],
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._tag = tag
        self._hear = hear
        # A shim died over this run.
        self._lost = lost
        # No shim could be made for this run.
        self._unborn = unborn
        # Removes files of runs that are over.
        self._tidy = tidy
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: dict[bool, list[Channel]] = {True: [], False: []}
        # Whether there is a plain shim, for jobs that ask for nothing special.
        self.has_plain = os.access(PLAIN, os.X_OK) and os.environ.get("GFLOW_SHIM") != "python"
        self._closed = self._trimming = False
        self.layers = Layers()

    def open(self) -> None:
        """Start the zygote. Call before any file is opened that jobs must not inherit."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).resolve().parents[3])
        boot = f"import sys; sys.path.append({root!r}); from gflow.targets.local import zygote; zygote.main()"
        fd = theirs.fileno()
        self._zygote = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", boot, str(fd), self._tag],
            pass_fds=(fd,),
            stdin=subprocess.DEVNULL,
            # Nothing of the daemon's environment; the folder tells a reader of `ps e` whose this is.
            env={"PATH": os.defpath, "GFLOW_RUN_DIR": self._folder} | _kept("GFLOW_NO_CGROUPS"),
        )
        theirs.close()
        self._control = ours
        self.layers = find_layers(self._tag)
        sweep_others(self.layers)

    @property
    def zygote_pid(self) -> int | None:
        return self._zygote.pid if self._zygote else None

    def close(self, busy: Iterable[Channel]) -> None:
        """Let go of everything; busy shims go on by themselves."""
        self._closed = True
        for channel in busy:
            self._drop(channel)
        self._dismiss([*self._idle[True], *self._idle[False]])
        if self._control:
            self._control.close()
        if self._zygote:
            self._zygote.wait()
        remove_layers(self.layers)

    # ------------------------------------------------------------ one for each job

    def take(self, run: Run, *, plain: bool) -> Channel:
        """A shim for this run."""
        # The one that is idle longest is surely ready.
        idle = self._idle[plain]
        channel = idle.pop(0) if idle else self._new(plain=plain)
        channel.run = run
        if not idle:
            asyncio.get_running_loop().call_soon(self.warm_up)
        return channel

    def take_fresh(self, run: Run | None) -> Channel:
        """A Python shim that has run nothing yet: who carries a terminal's bytes remembers what its shim did.

        Without a run, nobody is told when it is gone.
        """
        channel = self._new(plain=False)
        channel.run = run
        return channel

    def let_go(self, channel: Channel) -> None:
        """Nothing more is wanted of this shim."""
        self._drop(channel)

    def give_back(self, channel: Channel) -> None:
        """Its job is over: it waits for the next one."""
        if channel.retires:
            self._drop(channel)
            return
        channel.run = None
        idle = self._idle[channel.plain]
        idle.append(channel)
        if len(idle) > IDLE_MAX[channel.plain] and not self._trimming:
            self._trimming = True
            asyncio.get_running_loop().call_later(SPARE_S, self._trim)

    def warm_up(self) -> None:
        """Have a shim ready before the first job asks for one."""
        if not self._idle[self.has_plain] and not self._closed:
            with suppress(OSError):  # the job that needs one is told why there is none
                self._idle[self.has_plain].append(self._new(plain=self.has_plain))

    def send(self, channel: Channel, fields: list[bytes]) -> None:
        data = pack(fields)
        try:
            sent = channel.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the shim is gone; the reader will see it and settle the run
            return
        if sent < len(data):
            task = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(channel.sock, data[sent:]))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _new(self, *, plain: bool) -> Channel:
        if self._zygote is None or self._zygote.poll() is not None:
            self.open()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        kind = [b"plain" if plain else b"shim"]
        try:
            socket.send_fds(self._control, kind, [theirs.fileno()])
        except (BrokenPipeError, ConnectionResetError):  # it died since we looked
            self.open()
            socket.send_fds(self._control, kind, [theirs.fileno()])
        theirs.close()
        channel = Channel(ours, plain=plain)
        asyncio.get_running_loop().add_reader(ours, self._readable, channel)
        return channel

    def _readable(self, channel: Channel) -> None:
        try:
            data = channel.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._gone(channel)
            return
        channel.buffer += data
        for message in unpack(channel.buffer):
            if message[0] == UNBORN:
                self._never_was(channel, message[1].decode(errors="replace"))
                return
            self._hear(channel, message)

    # ------------------------------------------------------------ those that go

    def _gone(self, channel: Channel) -> None:
        """A shim died. If it had a job, somebody must find out what became of it."""
        self._drop(channel)
        self.sweep_soon()
        if channel in self._idle[channel.plain]:
            self._idle[channel.plain].remove(channel)
        if channel.run is not None:
            self._lost(channel.run)

    def _never_was(self, channel: Channel, why: str) -> None:
        """The zygote could not fork: whoever was to have this shim has none."""
        self._drop(channel)
        if channel in self._idle[channel.plain]:
            self._idle[channel.plain].remove(channel)
        if channel.run is not None:
            self._unborn(channel.run, why)

    def sweep_soon(self) -> None:
        """A shim is gone that may have been killed: drop what it could not drop itself."""
        for delay in SWEEP_AFTER_S:
            asyncio.get_running_loop().call_later(delay, self._sweep)

    def _sweep(self) -> None:
        if not self._closed:
            sweep_shims(self.layers)
            self._tidy()

    def _trim(self) -> None:
        """Let go of idle shims that the last rush of jobs left over."""
        self._trimming = False
        if self._closed:
            return
        for plain, idle in self._idle.items():
            self._idle[plain] = idle[: IDLE_MAX[plain]]
            for channel in idle[IDLE_MAX[plain] :]:
                self._drop(channel)

    def _drop(self, channel: Channel) -> None:
        asyncio.get_running_loop().remove_reader(channel.sock)
        channel.sock.close()

    def _dismiss(self, idle: list[Channel]) -> None:
        """Let idle shims go, and see them gone: each takes its control group along."""
        loop = asyncio.get_running_loop()
        for channel in idle:
            loop.remove_reader(channel.sock)
            channel.sock.settimeout(DISMISS_S)
            with suppress(OSError):
                channel.sock.shutdown(socket.SHUT_WR)
        for channel in idle:
            with suppress(OSError):
                channel.sock.recv(1)
            channel.sock.close()


def _kept(name: str) -> dict[str, str]:
    """One variable of our own environment, if it is set."""
    return {name: os.environ[name]} if name in os.environ else {}
