"""Which daemon a gflowd command is about: one's own, or the machine's."""

from __future__ import annotations

import os

from gflow import paths
from gflow.client import hot_path, no_daemon
from gflow.errors import Refused, UsageError

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any


def choose(values: dict[str, Any]) -> None:
    """Talk to the machine's daemon, or to one's own, as these flags say."""
    get = os.environ.get
    if {"system", "private"} <= values.keys():
        raise UsageError("--system and --private do not go together")
    if "private" in values:
        hot_path.talk_to(paths.own_socket(get))
    elif os.geteuid():
        raise Refused("--system is for root", hint="gflowd up starts a daemon for yourself")
    else:
        hot_path.talk_to(paths.system_socket(get))


def check_alone(values: dict[str, Any]) -> None:
    """Where the machine has a daemon, be it down, nobody gets to another by mistake."""
    if values.keys() & {"system", "private"}:
        return
    if os.path.exists(paths.system_socket(os.environ.get)):
        raise Refused(
            "this machine has a gflow daemon for everybody, and gbatch uses it",
            hint="gflowd up --private starts one of your own beside it",
        )
    if no_daemon.is_machine_served(hot_path.getenv):
        theirs = "--system means that one" if os.geteuid() == 0 else "root starts it with gflowd up --system"
        raise Refused(
            "this machine has a gflow daemon for everybody, and it is down",
            hint=f"{theirs}; --private means one of your own",
        )
