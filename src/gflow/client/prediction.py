"""`--fit FILE`: what `gflow plan --out` or `gflow fit --json` wrote, as MiB on each GPU."""

from __future__ import annotations

import json
from typing import Any

from gflow.client.describing import read_file
from gflow.errors import UsageError

MIB = 1 << 20
HINT = "gflow plan --out plan.json writes one; gflow fit --json > fit.json as well"


def predicted_mib(path: str, gpus: int | None) -> int:
    """The figure of the file. `gpus`: how many the job asks for, if that is known."""
    try:
        found = json.loads(read_file(path))
    except ValueError:
        raise UsageError(f"{path} is not a plan: it is no JSON", hint=HINT) from None
    way = found.get("chosen") if isinstance(found, dict) else None
    size = _size(found, way)
    if size is None:
        raise UsageError(f"{path} holds no prediction", hint=HINT)
    planned = way.get("gpus") if isinstance(way, dict) else None
    if gpus is not None and type(planned) is int and planned != gpus:
        raise UsageError(
            f"{path} is a plan for {planned} GPUs, and the job asks for {gpus}", hint=f"--gpus {planned}"
        )
    return -(-size // MIB)


def _size(found: Any, way: Any) -> int | None:
    """Bytes on each GPU: of the chosen way of a plan, or of a prediction."""
    size = way.get("bytes") if isinstance(way, dict) else None
    if size is None and isinstance(found, dict):
        size = found.get("process_bytes")
    return size if type(size) is int and size > 0 else None
