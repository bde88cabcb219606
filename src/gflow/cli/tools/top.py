"""gflow top: the live view in the terminal."""

from __future__ import annotations

import os
import sys

from gflow.options.commands.top_options import OPTIONS
from gflow.options.parse import parse

ABOUT = """Watch GPUs, jobs and logs live in the terminal: memory and utilisation of each
GPU, jobs with their progress or why they wait, the log of the selected job.
Keys cancel, hold, release and redo jobs and change priorities; ? lists them.

Needs the extra tui. Without it, the command prints how to install it;
gqueue --watch and ginfo --watch need nothing. NO_COLOR=1 turns colours off."""
EXAMPLES = """gflow top
ssh -t gpu1 gflow top"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow top", ABOUT, OPTIONS, EXAMPLES))
        return 0
    from gflow.errors import UsageError

    if rest:
        raise UsageError(f"unexpected argument {rest[0]!a}", hint="in gflow top, / filters jobs")
    _check_packages()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "gflow top needs a terminal",
            hint="gflow status prints one screen; with ssh: ssh -t HOST gflow top",
        )
    return _show()


def _show() -> int:
    """Draw the first frame, then import textual, which takes most of the start, and let it go on."""
    import gc
    import termios
    import tty

    from gflow.client import hot_path, http

    http.get("/health")  # without a daemon, one sentence instead of an empty screen
    from gflow.tui.layout import USUAL_SCREEN, first_frame
    from gflow.tui.line import WIDE
    from gflow.tui.queue_feed import QueueFeed

    size, terminal = os.get_terminal_size(), termios.tcgetattr(0)
    feed = QueueFeed()
    feed.has_starts = size.columns >= WIDE
    view = feed.load()
    try:
        tty.setcbreak(0)  # keys that are typed meanwhile are not echoed
        frame = first_frame(view, *size, has_colours="color" in hot_path.terminal())
        hot_path.write(1, frame.encode())
        gc.disable()  # the import makes many objects that stay; the program enables it again
        from gflow.tui.top_app import TopApp

        return TopApp(feed, view).run() or 0
    finally:
        hot_path.write(1, USUAL_SCREEN.encode())
        termios.tcsetattr(0, termios.TCSADRAIN, terminal)


def _check_packages() -> None:
    """Refuse with a hint if textual is not installed. Importing it here would delay the first frame."""
    from contextlib import suppress
    from importlib.util import find_spec

    with suppress(ModuleNotFoundError):
        if find_spec("textual") is not None:
            return
    from gflow.errors import Refused
    from gflow.install_hint import install_hint

    raise Refused("gflow top needs the extra tui, which is not installed", hint=install_hint("tui"))
