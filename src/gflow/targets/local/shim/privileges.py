"""Privileges: in system mode the shim is root and the job runs as its owner.

The child gives up root for good before it touches any path, log or program of the owner.
`native/privileges.c` does the same in C. Standard library only: the shim imports this.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import struct
import time
from collections.abc import Callable
from contextlib import suppress

_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_DUMPABLE = 4
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAPABILITIES_VERSION_3 = 0x20080522
# keyctl(KEYCTL_JOIN_SESSION_KEYRING): the job must not inherit root's keys.
KEYCTL = {"x86_64": 250, "aarch64": 219}
JOIN_SESSION_KEYRING = 1
HELPER_S = 5.0


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


def become(uid: int, name: str = "") -> None:
    """Become this user: groups, then gid, then uid. Drops all capabilities; cannot be undone.

    `name`: the account name that the uid must have in the user database now; empty: any.
    """
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        raise OSError(0, f"there is no user {uid} here") from None
    if name and account.pw_name != name:
        raise OSError(0, f"uid {uid} belongs to {account.pw_name} now, and not to {name}")
    gid = account.pw_gid
    _set_login(uid)
    try:
        os.initgroups(account.pw_name, gid)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise OSError(error.errno, f"cannot become user {uid}: {error.strerror}") from error
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # our memory holds root's data; exec resets this
    number = KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(number, JOIN_SESSION_KEYRING, None)
    if uid and not (_drop_capabilities() and _is_only_user(uid, gid)):
        raise OSError(0, "root's rights could not be given up")


def _set_login(uid: int) -> None:
    """Set the login uid for the kernel's audit. Fails, without harm, on a kernel without auditing."""
    with suppress(OSError), open("/proc/self/loginuid", "w") as file:
        file.write(str(uid))


def _drop_capabilities() -> bool:
    header, sets = _Header(CAPABILITIES_VERSION_3, 0), (_Sets * 2)()
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if _libc.capset(ctypes.byref(header), sets) or _libc.capget(ctypes.byref(header), sets):
        return False
    return not any(part.effective or part.permitted or part.inheritable for part in sets)


def _is_only_user(uid: int, gid: int) -> bool:
    """Whether all our ids are those of this user and we cannot become root again."""
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        return False
    return _is_refused(lambda: os.setresuid(-1, 0, -1)) and _is_refused(lambda: os.setresgid(-1, 0, -1))


def _is_refused(act: Callable[[], None]) -> bool:
    try:
        act()
    except PermissionError:
        return True
    return False


def grant_read(fd: int, uid: int) -> None:
    """Let the owner read and execute a file, but not write it.

    The owner's quota does not apply on root's disk. Without access control lists the owner gets the file.
    """
    unused_id = 0xFFFFFFFF
    entries = (0x01, 5, unused_id, 0x02, 5, uid, 0x04, 0, unused_id, 0x10, 5, unused_id, 0x20, 0, unused_id)
    try:
        os.setxattr(fd, "system.posix_acl_access", struct.pack("<I" + "HHI" * 5, 2, *entries))
    except OSError:
        os.fchown(fd, uid, -1)


def run_as_user(uid: int | None, act: Callable[[], None], name: str = "") -> None:
    """Call `act` as this user, in a child that gives up root first. Its errors are ignored."""
    if uid is None:
        with suppress(OSError):
            act()
        return
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            become(uid, name)
            act()
            code = 0
        finally:
            os._exit(code)
    until = time.monotonic() + HELPER_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0):  # the user or their file system may block it
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
