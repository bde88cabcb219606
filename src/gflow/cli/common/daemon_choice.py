"""Choose the daemon that a gflowd command acts on: the user's own, or the system-wide one."""

from __future__ import annotations

import os

from gflow import paths
from gflow.client import hot_path, no_daemon
from gflow.errors import Refused, Unreachable, UsageError

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

# For root, who has both.
CHOICE = "--system selects the system-wide daemon, --private one of your own"


def choose(values: dict[str, Any]) -> None:
    """Select the system-wide daemon (--system) or the user's own (--private)."""
    get = os.environ.get
    if {"system", "private"} <= values.keys():
        raise UsageError("--system and --private do not go together")
    if "private" in values:
        hot_path.use_socket(paths.own_socket(get))
    elif os.geteuid():
        raise Refused("--system requires root", hint="run the command as root")
    else:
        hot_path.use_socket(paths.system_socket(get))


def check_alone(values: dict[str, Any]) -> None:
    """Refuse to act on a private daemon unasked where a system-wide daemon is set up, running or not."""
    if values.keys() & {"system", "private"}:
        return
    if not no_daemon.has_system_daemon(hot_path.getenv):
        return
    if not _system_is_up():
        down = no_daemon.system_is_down()
        raise Refused(down.message, hint=down.hint if os.geteuid() else CHOICE)
    raise Refused(
        "this machine has a system-wide gflow daemon, and gbatch uses it",
        hint="gflowd up --private starts one of your own in addition" if os.geteuid() else CHOICE,
    )


def _system_is_up() -> bool:
    try:
        hot_path.connect(paths.system_socket(hot_path.getenv)).close()
    except (ConnectionError, Unreachable):
        return False
    return True
