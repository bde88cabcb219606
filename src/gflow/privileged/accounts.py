"""Accounts: the entry of the user database, and what bars one, from the shadow file."""

from __future__ import annotations

import ctypes
import os
import pwd
import time
from typing import NamedTuple

DAY_S = 86_400
_libc = ctypes.CDLL(None, use_errno=True)


class Account(NamedTuple):
    """An entry of the user database."""

    name: str
    home: str
    gid: int
    # Why it may not be used now (locked, expired); empty if it may.
    barred: str


class _Shadow(ctypes.Structure):
    """`struct spwd` of <shadow.h>."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("password", ctypes.c_char_p),
        *((name, ctypes.c_long) for name in ("changed", "least", "most", "warn", "inactive", "expires")),
        ("flag", ctypes.c_ulong),
    )


_libc.getspnam.restype = ctypes.POINTER(_Shadow)


def look_up(uid: int) -> Account | None:
    """The account of this uid now; None: there is none, or the user database does not answer."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    barred = _why_account_barred(entry.pw_name) if uid else ""
    return Account(entry.pw_name, entry.pw_dir, entry.pw_gid, barred)


def why_below(uid: int, min_uid: int) -> str:
    """Why a uid is too low to run jobs; empty: it is not. Root's is not looked at."""
    return f"uid {uid} is below people.min_uid, which is {min_uid}" if 0 < uid < min_uid else ""


def _why_account_barred(name: str) -> str:
    """Why an account may not be used, from the shadow database, which only root can read."""
    if os.geteuid():
        return ""
    found = _libc.getspnam(name.encode())
    if not found:
        return ""
    shadow = found.contents
    return why_barred((shadow.password or b"").decode(errors="replace"), shadow.expires, time.time())


def why_barred(password: str, expires: int, now: float) -> str:
    """Why an account with this entry may not be used at `now`.

    `expires`: days since 1970, -1: never. A password that was locked (`usermod -L` puts `!` in front of its
    hash) bars the account; one that was never set (`!`, `!!`, `*`) does not: its user has other ways in.
    """
    if 0 <= expires <= now // DAY_S:
        return "expired"
    rest = password.lstrip("!")
    return "locked" if rest != password and rest.strip("*") else ""
