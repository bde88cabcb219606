"""No daemon is running and somebody sits there: offer to start one."""

from __future__ import annotations

import os
import sys

from gflow.client import absent, fast


def is_answerable(words: list[str]) -> bool:
    """Whether there is a person to ask, and a daemon of their own is what they would want."""
    is_asked = "--json" not in words and os.isatty(0) and os.isatty(2)
    return is_asked and not absent.is_machine_served(fast.getenv)


def start() -> int | None:
    """Ask; if the answer is yes, start a daemon. Its exit code, or None if the answer is no."""
    sys.stderr.write("gbatch: the gflow daemon is not running. Start it now? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return None
    from gflow.cli.gflowd import run as gflowd

    return gflowd(["up"])
