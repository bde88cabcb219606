"""No daemon is running and somebody sits there: offer to start one."""

from __future__ import annotations

import os
import sys


def is_answerable(words: list[str]) -> bool:
    """Whether there is a person to ask."""
    return "--json" not in words and os.isatty(0) and os.isatty(2)


def start_and_submit(words: list[str]) -> int | None:
    """Ask; if the answer is yes, start a daemon and submit. None: the answer is no."""
    sys.stderr.write("gbatch: the gflow daemon is not running. Start it now? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return None
    from gflow.cli.gflowd import run as gflowd
    from gflow.cli.main import main

    code = gflowd(["up"])
    return code or main("gbatch", words)
