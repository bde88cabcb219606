"""The native shim: where it is, and its help with the devices of control groups.

Standard library only: the shim imports this.
"""

from __future__ import annotations

import errno
import os

# Missing if gflow was installed without a compiler.
NATIVE_SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gflow-shim")


def restrict_devices(group: str, rules: str) -> None:
    """Let the processes of a version 2 control group open only what these rules allow (`native/devices.c`).

    The program of the kernel is loaded by the native shim. OSError: it cannot be, and nothing has changed.
    """
    pid = os.posix_spawn(NATIVE_SHIM, ["gflow-shim", "restrict", group, rules], {})
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code if code > 0 else errno.EIO, os.strerror(code) if code > 0 else "killed", group)


def find_restriction_error(folder: str) -> str:
    """Why the devices of control groups in this folder cannot be restricted; empty: they can be."""
    if not folder:
        return "control groups of version 2 cannot be made here"
    if not os.access(NATIVE_SHIM, os.X_OK):
        return "gflow was installed without a C compiler"
    group = f"{folder}/devices-{os.getpid()}"
    try:
        os.mkdir(group)
    except OSError as error:
        return f"{error.strerror}: {group}"
    try:
        restrict_devices(group, "deny 195 *")
    except OSError as error:
        return f"the kernel refuses a device program: {error.strerror}"
    finally:
        os.rmdir(group)
    return ""
