"""Users and groups, from the user database and the kernel; never from what a caller claims."""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gflow.core.model import Job
from gflow.privileged.accounts import Account, look_up

# SO_PEERCRED: pid, uid and gid of the peer. SO_PEERGROUPS: its supplementary groups.
_UCRED = struct.Struct("3i")
SO_PEERGROUPS = 59
GROUPS_BYTES = 1024
# Seconds for which the gid of a group name is cached.
KNOWN_S = 60.0

# Seconds for which an entry of the user database is cached: an account that is deleted, locked or replaced
# loses its rights within this time. Number of cached entries.
ACCOUNT_S = 2.0
MOST_ACCOUNTS = 4096
# Stands for all uids without an account: one user can have thousands of them (subordinate uids).
NO_ACCOUNT = -1
# Bytes for one entry of the user database, and for its strings (an LDAP entry may be long).
ENTRY_BYTES, STRINGS_BYTES = 256, 65_536

_known_groups: dict[str, tuple[float, int | None]] = {}
_known_accounts: dict[int, tuple[float, Account | None]] = {}
# Looks an account up in the user database. The daemon does it through its port (`look_up_with`).
_look_up: Callable[[int], Account | None] = look_up
_libc = ctypes.CDLL(None, use_errno=True)


class JobOwner(NamedTuple):
    """The user who sent a request, as an owner of jobs."""

    uid: int
    # The current name of the uid. None: any name (private daemon, or the user database does not answer).
    name: str | None = None

    def owns(self, job: Job) -> bool:
        """Whether the user owns the job. Jobs of an earlier account with the same uid are not theirs."""
        return job.uid == self.uid and self.name in (None, job.user)


def peer(sock: socket.socket) -> tuple[int, int, frozenset[int]]:
    """Pid, uid and groups of a socket's peer, from the kernel."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    try:
        more = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES)
    except OSError:  # an old kernel, or too many groups: unknown groups give no rights
        more = b""
    return pid, uid, frozenset({gid, *struct.unpack(f"{len(more) // 4}I", more)})


def peer_uid(sock: socket.socket) -> int:
    """The uid of a socket's peer, from the kernel."""
    uid: int = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
    return uid


def is_member(group: str, groups: frozenset[int]) -> bool:
    """Whether the gid of this group name is among `groups`."""
    now = time.monotonic()
    looked_at, gid = _known_groups.get(group, (-KNOWN_S, None))
    if now - looked_at >= KNOWN_S or gid is None:
        try:
            gid = grp.getgrnam(group).gr_gid
        except KeyError:
            gid = None
        _known_groups[group] = now, gid
    return gid is not None and gid in groups


def look_up_with(look_up: Callable[[int], Account | None]) -> None:
    """Set how accounts are looked up."""
    global _look_up
    _look_up = look_up


def account_of(uid: int) -> Account | None:
    """The account of this uid, at most `ACCOUNT_S` old; None if there is none."""
    now = time.monotonic()
    looked_at, account = _known_accounts.get(uid, (-ACCOUNT_S, None))
    if now - looked_at >= ACCOUNT_S:
        if len(_known_accounts) >= MOST_ACCOUNTS:
            _known_accounts.clear()
        account = _look_up(uid)
        _known_accounts[uid] = now, account
    return account


def accounting_uid(uid: int) -> int:
    """The uid that limits per user count for this uid: all uids without an account count as one user.

    The daemon's own uid needs no account: in a container it often has none.
    """
    return uid if uid in (0, os.getuid()) or account_of(uid) is not None else NO_ACCOUNT


def user_name(uid: int) -> str:
    account = account_of(uid)
    return account.name if account else str(uid)


def job_owner_of(uid: int) -> JobOwner:
    """The user that has this uid now. If the user database does not answer, only the uid counts."""
    account = account_of(uid)
    name = account.name if account else str(uid) if _is_absent(uid) else None
    return JobOwner(uid, name)


def similar_accounts(name: str) -> list[str]:
    """The name itself if it has an account, else the names of all accounts. Slow with a network database."""
    try:
        return [pwd.getpwnam(name).pw_name]
    except (KeyError, ValueError):
        return [entry.pw_name for entry in pwd.getpwall()]


def home_of(uid: int) -> str:
    account = account_of(uid)
    return account.home if account else "/nonexistent"


def is_listed(uid: int, members: Sequence[str]) -> bool:
    """Whether this account is in `members`: user names, and group names with a leading @."""
    account = account_of(uid)
    if account is None:
        return False
    groups = [name.removeprefix("@") for name in members if name.startswith("@")]
    if account.name in members:
        return True
    gids = frozenset(os.getgrouplist(account.name, account.gid)) if groups else frozenset()
    return any(is_member(group, gids) for group in groups)


def why_unusable(uid: int, name: str = "") -> str:
    """Why nothing may run as this uid now; empty if it may. Root always may.

    `name`: the name of the uid at submission; a uid can be given to another account later.
    """
    if not uid:
        return ""
    account = account_of(uid)
    if account is None:
        return f"there is no account with uid {uid}" + (f" ({name}) any more" if name else "")
    if name and account.name != name:
        return f"uid {uid} belongs to {account.name} now, and not to {name}"
    return f"the account {account.name} is {account.barred}" if account.barred else ""


def is_replaced(uid: int, name: str) -> bool:
    """Whether the account with this uid and name has certainly been deleted or replaced.

    False if the user database (LDAP, sssd) does not answer.
    """
    account = account_of(uid)
    if account is not None:
        return account.name != name
    return name != str(uid) and _is_absent(uid)


def _is_absent(uid: int) -> bool:
    """Whether the user database answers that the uid does not exist; `pwd` reports errors the same way."""
    entry, strings = ctypes.create_string_buffer(ENTRY_BYTES), ctypes.create_string_buffer(STRINGS_BYTES)
    found = ctypes.c_void_p()
    error = _libc.getpwuid_r(
        ctypes.c_uint(uid), entry, strings, ctypes.c_size_t(STRINGS_BYTES), ctypes.byref(found)
    )
    return error == 0 and not found.value
