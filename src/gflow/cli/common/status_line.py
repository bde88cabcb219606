"""What takes long says so: one line on standard error, on a terminal only, gone when it is done."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

# Who waits less than this does not wonder.
PATIENCE_S = 1.0
EVERY_S = 0.5


@contextlib.contextmanager
def shown(what: str) -> Iterator[None]:
    """While the block runs: what it does, and for how long already."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(what: str, done: threading.Event) -> None:
    began = time.monotonic()
    wait = PATIENCE_S
    while not done.wait(wait):
        sys.stderr.write(f"\r{what}: {time.monotonic() - began:.0f} s\033[K")
        sys.stderr.flush()
        wait = EVERY_S
    if wait != PATIENCE_S:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
