"""What the scheduler gives up for good before it does anything: root, capabilities, and some system calls."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from contextlib import suppress

# prctl(2) and seccomp(2).
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 24, 38, 22
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63
EPERM, ENOSYS = 1, 38
# System calls that a scheduler has no use for: number on x86_64 and on aarch64.
REFUSED_CALLS = {
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "quotactl": (179, 60),
}
# clone(2) without the flags of new namespaces, which give all capabilities over them. The flags of clone3(2)
# are in memory, where a filter cannot read them: without it, libc uses clone.
CLONE, CLONE3 = (56, 220), (435, 435)
CLONE_NEW = 0x7E020000
# AUDIT_ARCH of a machine, and the column of the table.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# Bit of the system calls of the x32 ABI.
X32 = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def enter(uid: int, gid: int) -> None:
    """Become this user, without any capability and any way to get one. OSError: that was not possible."""
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(LAST_CAPABILITY + 1):
        with suppress(OSError):  # the kernel has fewer
            _prctl(PR_CAPBSET_DROP, capability)
    os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _drop_capabilities()
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    refuse_calls()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def refuse_calls() -> None:
    """Let the kernel refuse the system calls of the table to this process. No-op on other machines."""
    found = MACHINES.get(platform.machine())
    if found is None:
        return
    audit_arch, column = found
    code = _program(audit_arch, column)
    text = ctypes.create_string_buffer(code, len(code))
    filter_ = _Filter(len(code) // 8, ctypes.addressof(text))
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filter_))


def _program(audit_arch: int, column: int) -> bytes:
    """A program of classic BPF: EPERM for these calls, and for all calls of another architecture."""
    load, jump_equal, jump_bits, give = 0x20, 0x15, 0x45, 0x06
    number_at, architecture_at, first_argument_at = 0, 4, 16
    allow, refuse = 0x7FFF0000, 0x00050000
    lines = [(load, 0, 0, architecture_at), (jump_equal, 1, 0, audit_arch), (give, 0, 0, refuse | EPERM)]
    lines += [(load, 0, 0, number_at), (jump_bits, 0, 1, X32), (give, 0, 0, refuse | EPERM)]
    for number in sorted(one[column] for one in REFUSED_CALLS.values()):
        lines += [(jump_equal, 0, 1, number), (give, 0, 0, refuse | EPERM)]
    lines += [(jump_equal, 0, 1, CLONE3[column]), (give, 0, 0, refuse | ENOSYS)]
    lines += [(jump_equal, 1, 0, CLONE[column]), (give, 0, 0, allow)]
    lines += [(load, 0, 0, first_argument_at), (jump_bits, 0, 1, CLONE_NEW), (give, 0, 0, refuse | EPERM)]
    lines.append((give, 0, 0, allow))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _drop_capabilities() -> None:
    """Empty the inheritable set too, which a container may have filled."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITY_VERSION_3, 0))
    data = ctypes.create_string_buffer(struct.pack("=6I", *[0] * 6))
    if _libc.capset(header, data):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _prctl(option: int, first: int, second: int = 0) -> None:
    if _libc.prctl(
        option, ctypes.c_ulong(first), ctypes.c_ulong(second), ctypes.c_ulong(0), ctypes.c_ulong(0)
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
