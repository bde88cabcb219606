"""The zygote: a single-threaded process that only forks shims.

Started by exec before the daemon opens its database and sockets, so that no shim can inherit them. Each
message on its control socket names a kind of shim and carries one descriptor: the channel of the new shim.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from contextlib import suppress

from gflow.targets.local import run_record
from gflow.targets.local.cgroups import Layers, drop_shim_groups, find_layers, remove_layers
from gflow.targets.local.native_shim import NATIVE_SHIM
from gflow.targets.local.protocol import pack
from gflow.targets.local.shim import shim

TAKE_OVER = "take-over"
# Message on the channel of a shim that could not be forked, with the reason.
FORK_FAILED = b"unborn"


def main() -> None:
    """Run the zygote, or the Python shim that takes over from a native one."""
    if sys.argv[1] == TAKE_OVER:
        layers = find_layers(sys.argv[2])
        shim.take_over(sys.argv[3:], layers)
        drop_shim_groups(layers, f"shim-{os.getpid()}-{run_record.start_time(os.getpid())}")
        remove_layers(layers)
    else:
        fork_shims()


def fork_shims() -> None:
    """Fork a shim for every channel that arrives; return when the daemon ends."""
    os.setsid()
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are reaped by the kernel
    shim.become_reaper()  # orphans of a killed shim become our children, where the daemon finds them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    tag = sys.argv[2]
    layers = find_layers(tag)
    # Our command line without our own arguments: a native shim executes it to be taken over.
    python = [*sys.orig_argv[:-2], TAKE_OVER, tag]
    # Version 2 counts processes in the groups of `layers.kill`.
    pids = layers.pids if layers.pids_version == 1 else ""
    _reset_inherited()
    gc.freeze()  # keep the memory pages loaded so far shared with every shim
    while True:
        kind, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not kind:
            remove_layers(layers)
            return
        (channel,) = descriptors
        if _fork(channel) == 0:
            control.close()
            if kind == b"plain":
                os.execv(NATIVE_SHIM, ["gflow-shim", str(channel), layers.kill, pids, *python])
            os.set_inheritable(channel, False)  # recv_fds leaves them open across exec
            _become_shim(channel, layers)
        os.close(channel)


def _fork(channel: int) -> int:
    """Fork a shim. On failure, report it to the daemon through the channel, which then closes."""
    try:
        return os.fork()
    except OSError as error:
        with socket.socket(fileno=os.dup(channel)) as sock, suppress(OSError):
            sock.sendall(pack([FORK_FAILED, str(error.strerror).encode()]))
        return -1


def _reset_inherited() -> None:
    """Reset nice value, CPU affinity and out-of-memory score, so that jobs do not inherit the daemon's."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")


def _become_shim(channel_fd: int, layers: Layers) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        shim.serve(socket.socket(fileno=channel_fd), layers)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        remove_layers(layers)
        sys.stderr.flush()
        os._exit(code)
