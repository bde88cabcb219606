"""How a run ended. Apart from the port: what runs beside a job needs it, and the standard library alone."""

from __future__ import annotations

from typing import NamedTuple


class End(NamedTuple):
    """How the job ended. `problem` is set when it could not even start."""

    code: int | None
    signal: int | None
    problem: str
    cpu_ms: int = 0
    peak_kib: int = 0
