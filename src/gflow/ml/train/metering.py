"""The meter file that a run writes for `gflow scale`: JSON lines with time, step and samples, and one line
with other measurements. A run that shares no folder with `gflow scale` prints them.

Nothing here needs PyTorch.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# Environment variables: the file, the number of warm-up steps, and the seconds to measure after them.
FILE, WARMUP, SECONDS = "GFLOW_METER", "GFLOW_METER_WARMUP", "GFLOW_METER_SECONDS"
EVERY_S = 0.1
# As the file: the lines are printed.
PRINTED = "-"
_LINE = re.compile(r'\{"(?:at|facts)": .*\}')


class Meter:
    """Appends complete lines and never fails: a measurement must not end the run."""

    def __init__(self, path: str, warmup: int, seconds: float) -> None:
        self.path, self.warmup, self.seconds = path, warmup, seconds
        self._due = 0.0

    def tick(self, step: int, samples: int, *, always: bool = False) -> None:
        """Record the steps and samples of all ranks so far, at most every `EVERY_S` unless `always`."""
        now = time.monotonic()
        if now >= self._due or always:
            self._due = now + EVERY_S
            self._write({"at": now, "step": step, "samples": samples})

    def facts(self, facts: Mapping[str, Any]) -> None:
        self._write({"facts": dict(facts)})

    def _write(self, line: dict[str, Any]) -> None:
        with suppress(OSError):
            if self.path == PRINTED:
                os.write(1, json.dumps(line).encode() + b"\n")
                return
            with open(self.path, "a", encoding="ascii") as file:
                file.write(json.dumps(line) + "\n")


def printed_lines(log: str) -> str:
    """The lines of a meter in the log of a run, also behind other output in the same line."""
    return "".join(f"{line}\n" for line in _LINE.findall(log))


def meter_of(environ: Mapping[str, str] | None = None) -> Meter | None:
    """Return the meter that `gflow scale` asks for; None if the run is not measured."""
    environ = os.environ if environ is None else environ
    if not (path := environ.get(FILE)):
        return None
    return Meter(path, int(environ.get(WARMUP, "5")), float(environ.get(SECONDS, "20")))
