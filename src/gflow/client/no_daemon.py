"""The error when no daemon answers: names the daemon and the command that starts it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gflow import paths
from gflow.errors import Unreachable

if TYPE_CHECKING:
    from gflow.paths import Getenv


def has_system_daemon(get: Getenv) -> bool:
    """Whether a system-wide daemon is set up on this machine, running or not."""
    return any(map(os.path.exists, paths.machine_signs(get)))


def system_is_down() -> Unreachable:
    """The error for a system-wide daemon that does not answer. Only root can start it."""
    hint = "start it with: gflowd up --system"
    if os.geteuid():
        hint = "ask root to start it with: gflowd up --system"
    return Unreachable("the machine's gflow daemon is down", hint=hint)


def unreachable(get: Getenv) -> Unreachable:
    """The error for a daemon that does not answer."""
    chosen = get("GFLOW_SOCKET")
    if not has_system_daemon(get) or chosen not in (
        None,
        "",
        paths.system_socket(get),
        paths.own_socket(get),
    ):
        return Unreachable(hint="start it with: gflowd up")
    if chosen == paths.own_socket(get):
        return Unreachable(hint="start it with: gflowd up --private")
    return system_is_down()
