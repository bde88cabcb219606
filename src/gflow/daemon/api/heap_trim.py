"""Returns heap memory to the kernel (malloc_trim) after many TLS connections were closed."""

from __future__ import annotations

import asyncio
import ctypes

# Trim DELAY_S after AFTER connections were closed; connections closed during the delay are included.
AFTER = 64
DELAY_S = 10.0

_libc = ctypes.CDLL(None)


class Trimmer:
    """Counts closed connections and schedules the trim."""

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
