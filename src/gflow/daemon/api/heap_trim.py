"""Gives memory back to the system: malloc keeps what many connections with TLS have used."""

from __future__ import annotations

import asyncio
import ctypes

# After how many closed connections, and how much later: those that are closed meanwhile are counted too.
AFTER = 64
DELAY_S = 10.0

_libc = ctypes.CDLL(None)


class Trimmer:
    """Counts closed connections."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = 0

    def count(self) -> None:
        self._closed += 1
        if self._closed == AFTER:
            self._loop.call_later(DELAY_S, self._trim)

    def _trim(self) -> None:
        self._closed = 0
        if hasattr(_libc, "malloc_trim"):  # glibc
            _libc.malloc_trim(0)
