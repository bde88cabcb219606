"""What a command says when no daemon answers: which one is meant, and how it is started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gflow import paths
from gflow.errors import Unreachable

if TYPE_CHECKING:
    from gflow.paths import Getenv


def is_machine_served(get: Getenv) -> bool:
    """Whether this machine is set up to have a daemon for everybody, be it up or down."""
    return any(map(os.path.exists, paths.machine_signs(get)))


def unreachable(get: Getenv) -> Unreachable:
    """The error for a daemon that is not there."""
    chosen = get("GFLOW_SOCKET")
    if not is_machine_served(get) or chosen not in (
        None,
        "",
        paths.system_socket(get),
        paths.own_socket(get),
    ):
        return Unreachable(hint="start it with: gflowd up")
    if chosen == paths.own_socket(get):
        return Unreachable(hint="start it with: gflowd up --private")
    if os.geteuid() == 0:
        hint = "start it with: gflowd up --system"
    else:
        hint = "root starts it with gflowd up --system; gflowd up --private starts one of your own"
    return Unreachable("the machine's gflow daemon is down", hint=hint)
