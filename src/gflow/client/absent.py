"""What a command says when no daemon answers: which one is meant, and how it is started."""

from __future__ import annotations

import posix

from gflow.client import fast
from gflow.errors import Unreachable
from gflow.options import paths


def is_machine_served() -> bool:
    """Whether this machine is set up to have a daemon for everybody, be it up or down."""
    return any(map(fast.exists, paths.machine_signs(fast.getenv)))


def unreachable() -> Unreachable:
    """The error for a daemon that is not there."""
    chosen = fast.getenv("GFLOW_SOCKET")
    if not is_machine_served() or chosen not in (
        None,
        "",
        paths.system_socket(fast.getenv),
        paths.own_socket(fast.getenv),
    ):
        return Unreachable(hint="start it with: gflowd up")
    if chosen == paths.own_socket(fast.getenv):
        return Unreachable(hint="start it with: gflowd up --private")
    if posix.geteuid() == 0:
        hint = "start it with: gflowd up --system"
    else:
        hint = "root starts it with gflowd up --system; gflowd up --private starts one of your own"
    return Unreachable("the machine's gflow daemon is down", hint=hint)
