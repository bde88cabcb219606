"""The account of the scheduler of the system-wide daemon."""

from __future__ import annotations

import pwd
import shutil
import subprocess

from gflow.errors import Refused

NAME = "gflow"
NO_SHELL = "/usr/sbin/nologin"


def words_to_make(home: str) -> list[str]:
    """The command that makes the account."""
    return ["useradd", "--system", "--home-dir", home, "--no-create-home", "--shell", NO_SHELL, NAME]


def find() -> pwd.struct_passwd:
    """The account; refused if there is none."""
    try:
        found = pwd.getpwnam(NAME)
    except KeyError:
        raise Refused(
            f"there is no account {NAME}, as which the daemon for all users schedules",
            hint=f"{' '.join(words_to_make('/var/lib/gflow'))}   (gflowd service install --system does it)",
        ) from None
    if found.pw_uid == 0:
        raise Refused(f"the account {NAME} is root", hint=f"give {NAME} a uid of its own")
    return found


def uid() -> int | None:
    """The uid of the account; None: there is none."""
    try:
        return pwd.getpwnam(NAME).pw_uid
    except KeyError:
        return None


def make(home: str) -> bool:
    """Make the account if there is none; whether it was made."""
    if uid() is not None:
        return False
    if shutil.which("useradd") is None:
        raise Refused(f"there is no account {NAME}, and no useradd to make it", hint="make it by hand")
    done = subprocess.run(words_to_make(home), capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"the account {NAME} cannot be made: {done.stderr.strip()}")
    return True
