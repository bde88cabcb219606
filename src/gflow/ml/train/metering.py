"""What a run under `gflow scale` leaves for it: a file with a line for each look at the clock, and one with
what else was measured. Nothing here needs PyTorch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# The file; steps before anything counts; seconds that are enough after those.
FILE, WARMUP, SECONDS = "GFLOW_METER", "GFLOW_METER_WARMUP", "GFLOW_METER_SECONDS"
EVERY_S = 0.1


class Meter:
    """Writes lines that are whole, and never fails: a measurement must not end what it measures."""

    def __init__(self, path: str, warmup: int, seconds: float) -> None:
        self.path, self.warmup, self.seconds = path, warmup, seconds
        self._due = 0.0

    def tick(self, step: int, samples: int, *, always: bool = False) -> None:
        """So many steps and samples, over all ranks, are done now."""
        now = time.monotonic()
        if now >= self._due or always:
            self._due = now + EVERY_S
            self._write({"at": now, "step": step, "samples": samples})

    def facts(self, facts: Mapping[str, Any]) -> None:
        self._write({"facts": dict(facts)})

    def _write(self, line: dict[str, Any]) -> None:
        with suppress(OSError), open(self.path, "a", encoding="ascii") as file:
            file.write(json.dumps(line) + "\n")


def meter_of(environ: Mapping[str, str] | None = None) -> Meter | None:
    """The meter that `gflow scale` wants; None: nobody measures."""
    environ = os.environ if environ is None else environ
    if not (path := environ.get(FILE)):
        return None
    return Meter(path, int(environ.get(WARMUP, "5")), float(environ.get(SECONDS, "20")))
