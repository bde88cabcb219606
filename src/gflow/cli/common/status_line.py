"""A status line on standard error for slow operations; only on a terminal, erased at the end."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

# Operations shorter than this show no status line.
PATIENCE_S = 1.0
EVERY_S = 0.5


@contextlib.contextmanager
def show_status(what: str) -> Iterator[None]:
    """While the block runs, show `what` and the elapsed seconds."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(what, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(what: str, done: threading.Event) -> None:
    began = time.monotonic()
    wait = PATIENCE_S
    while not done.wait(wait):
        sys.stderr.write(f"\r{what}: {time.monotonic() - began:.0f} s\033[K")
        sys.stderr.flush()
        wait = EVERY_S
    if wait != PATIENCE_S:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
