"""Choose the daemon that a gflowd command acts on: the user's own, or the system-wide one."""

from __future__ import annotations

import os

from gflow import paths
from gflow.client import hot_path, no_daemon
from gflow.errors import Refused, UsageError

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any


def choose(values: dict[str, Any]) -> None:
    """Select the system-wide daemon (--system) or the user's own (--private)."""
    get = os.environ.get
    if {"system", "private"} <= values.keys():
        raise UsageError("--system and --private do not go together")
    if "private" in values:
        hot_path.use_socket(paths.own_socket(get))
    elif os.geteuid():
        raise Refused("--system requires root", hint="gflowd up starts a daemon of your own")
    else:
        hot_path.use_socket(paths.system_socket(get))


def check_alone(values: dict[str, Any]) -> None:
    """Refuse to act on a private daemon unasked where a system-wide daemon is set up, running or not."""
    if values.keys() & {"system", "private"}:
        return
    if os.path.exists(paths.system_socket(os.environ.get)):
        raise Refused(
            "this machine has a system-wide gflow daemon, and gbatch uses it",
            hint="gflowd up --private starts one of your own in addition",
        )
    if no_daemon.has_system_daemon(hot_path.getenv):
        system = "--system selects it" if os.geteuid() == 0 else "root starts it with gflowd up --system"
        raise Refused(
            "this machine has a system-wide gflow daemon, and it is down",
            hint=f"{system}; --private selects one of your own",
        )
