"""The shim pool: the zygote that forks shims, a channel to each shim, and the idle ones."""

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
from gflow.targets.local.native_shim import NATIVE_SHIM
from gflow.targets.local.protocol import pack, unpack
from gflow.targets.local.zygote import FORK_FAILED
from gflow.targets.port import Run

# Idle shims kept for the next jobs, native (True) and Python. A native one uses 0.25 MB, a Python one 2 MB.
IDLE_MAX = {True: 16, False: 4}
# Surplus idle shims are released after this many seconds: when many jobs end together, as many usually start
# next.
SPARE_S = 2.0
DISMISS_S = 2.0
# Delays, in seconds, of the sweeps after the death of a shim: its children may take a moment to end.
SWEEP_AFTER_S = (0.2, 1.0, 5.0)


class Channel:
    """Our end of one shim's channel, and the run it is busy with."""

    def __init__(self, sock: socket.socket, *, native: bool) -> None:
        self.sock = sock
        self.native = native
        self.buffer = bytearray()
        self.run: Run | None = None
        # Whether the shim exits after its present job.
        self.retires = False


class Shims:
    """Creates shims, keeps some idle, receives messages. All methods are called from the daemon's loop."""

    def __init__(
        self,
        folder: str,
        tag: str,
        on_message: Callable[[Channel, list[bytes]], None],
        on_lost: Callable[[Run], None],
        on_fork_failed: Callable[[Run, str], None],
        remove_stale_files: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._tag = tag
        self._on_message = on_message
        # Called with the run of a shim that died.
        self._on_lost = on_lost
        # Called if no shim could be forked for a run.
        self._on_fork_failed = on_fork_failed
        # Removes files of runs that are over.
        self._remove_stale_files = remove_stale_files
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: dict[bool, list[Channel]] = {True: [], False: []}
        # Whether the native shim is installed, for jobs without special demands.
        self.has_native = os.access(NATIVE_SHIM, os.X_OK) and os.environ.get("GFLOW_SHIM") != "python"
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
            # Nothing of the daemon's environment. The folder identifies the daemon in the output of `ps e`.
            env={"PATH": os.defpath, "GFLOW_RUN_DIR": self._folder} | _copy_variable("GFLOW_NO_CGROUPS"),
        )
        theirs.close()
        self._control = ours
        self.layers = find_layers(self._tag)
        sweep_others(self.layers)

    @property
    def zygote_pid(self) -> int | None:
        return self._zygote.pid if self._zygote else None

    def close(self, busy: Iterable[Channel]) -> None:
        """Release all shims and the zygote; busy shims continue by themselves."""
        self._closed = True
        for channel in busy:
            self._drop(channel)
        self._dismiss([*self._idle[True], *self._idle[False]])
        if self._control:
            self._control.close()
        if self._zygote:
            self._zygote.wait()
        remove_layers(self.layers)

    # ------------------------------------------------------------ allocation

    def take(self, run: Run, *, native: bool) -> Channel:
        """A shim for this run."""
        # The longest idle shim is certainly ready.
        idle = self._idle[native]
        channel = idle.pop(0) if idle else self._new(native=native)
        channel.run = run
        if not idle:
            asyncio.get_running_loop().call_soon(self.warm_up)
        return channel

    def take_fresh(self, run: Run | None) -> Channel:
        """A new Python shim, for a job with a terminal.

        The process that serves the terminal is forked from it and inherits its memory, so the shim must not
        have run any job before. Without a run, its death is not reported.
        """
        channel = self._new(native=False)
        channel.run = run
        return channel

    def release(self, channel: Channel) -> None:
        """Close the channel of a shim, which then exits."""
        self._drop(channel)

    def return_idle(self, channel: Channel) -> None:
        """Return a shim whose job is over to the idle ones."""
        if channel.retires:
            self._drop(channel)
            return
        channel.run = None
        idle = self._idle[channel.native]
        idle.append(channel)
        if len(idle) > IDLE_MAX[channel.native] and not self._trimming:
            self._trimming = True
            asyncio.get_running_loop().call_later(SPARE_S, self._trim)

    def warm_up(self) -> None:
        """Fork an idle shim before the next job needs one."""
        if not self._idle[self.has_native] and not self._closed:
            with suppress(OSError):  # the job that needs one reports the error
                self._idle[self.has_native].append(self._new(native=self.has_native))

    def send(self, channel: Channel, fields: list[bytes]) -> None:
        data = pack(fields)
        try:
            sent = channel.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the shim has died; the reader notices and handles the run
            return
        if sent < len(data):
            task = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(channel.sock, data[sent:]))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _new(self, *, native: bool) -> Channel:
        if self._zygote is None or self._zygote.poll() is not None:
            self.open()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        kind = [b"plain" if native else b"shim"]
        try:
            socket.send_fds(self._control, kind, [theirs.fileno()])
        except (BrokenPipeError, ConnectionResetError):  # the zygote died after poll()
            self.open()
            socket.send_fds(self._control, kind, [theirs.fileno()])
        theirs.close()
        channel = Channel(ours, native=native)
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
            self._on_shim_death(channel)
            return
        channel.buffer += data
        for message in unpack(channel.buffer):
            if message[0] == FORK_FAILED:
                self._on_no_shim(channel, message[1].decode(errors="replace"))
                return
            self._on_message(channel, message)

    # ------------------------------------------------------------ ends of shims

    def _on_shim_death(self, channel: Channel) -> None:
        """Handle the death of a shim, and report its run if it had one."""
        self._drop(channel)
        self.sweep_soon()
        if channel in self._idle[channel.native]:
            self._idle[channel.native].remove(channel)
        if channel.run is not None:
            self._on_lost(channel.run)

    def _on_no_shim(self, channel: Channel, why: str) -> None:
        """Handle that the zygote could not fork this shim."""
        self._drop(channel)
        if channel in self._idle[channel.native]:
            self._idle[channel.native].remove(channel)
        if channel.run is not None:
            self._on_fork_failed(channel.run, why)

    def sweep_soon(self) -> None:
        """Schedule the removal of groups and files of shims that may have been killed."""
        for delay in SWEEP_AFTER_S:
            asyncio.get_running_loop().call_later(delay, self._sweep)

    def _sweep(self) -> None:
        if not self._closed:
            sweep_shims(self.layers)
            self._remove_stale_files()

    def _trim(self) -> None:
        """Release surplus idle shims."""
        self._trimming = False
        if self._closed:
            return
        for native, idle in self._idle.items():
            self._idle[native] = idle[: IDLE_MAX[native]]
            for channel in idle[IDLE_MAX[native] :]:
                self._drop(channel)

    def _drop(self, channel: Channel) -> None:
        asyncio.get_running_loop().remove_reader(channel.sock)
        channel.sock.close()

    def _dismiss(self, idle: list[Channel]) -> None:
        """Release idle shims and wait for their exit: each removes its control group."""
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


def _copy_variable(name: str) -> dict[str, str]:
    """One variable of our environment, if it is set."""
    return {name: os.environ[name]} if name in os.environ else {}
