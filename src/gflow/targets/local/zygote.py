"""The zygote: a clean single-threaded process that does nothing but fork shims.

Started by exec before the daemon opens its database and sockets, so no shim can inherit
them. Each message on its control socket carries one descriptor: the channel of a new shim.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from gflow.targets.local import shim


def main() -> None:
    """Fork a shim for every channel that arrives; end when the daemon does."""
    os.setsid()
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    gc.freeze()  # what is loaded now stays shared with every shim
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not message:
            return
        os.set_inheritable(descriptors[0], False)  # recv_fds leaves them open across exec
        if os.fork() == 0:
            control.close()
            _become_shim(descriptors[0])
        os.close(descriptors[0])


def _become_shim(channel_fd: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        shim.serve(socket.socket(fileno=channel_fd))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)
