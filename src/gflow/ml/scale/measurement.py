"""The measurement of one run, from its meter file or from wall time alone. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gflow.ml.scale.sizes import Size

# Source of a measurement.
RUN, SAID, CLOCK = "gflow.train", "train.report", "clock"


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement of one size. Values that were not measured are None."""

    size: Size
    source: str
    samples_per_s: float
    seconds: float
    samples: int
    # Per step: duration, samples over all GPUs, the longest wait for data of any rank, and the time of an
    # all-reduce of all gradients without overlap.
    step_s: float | None = None
    effective_batch: float | None = None
    data_s: float | None = None
    exchange_s: float | None = None
    exchange_bytes: int = 0
    # Per node.
    processes: int = 0
    cores: int = 0
    # Load average of the first node at the end.
    load: float = 0.0
    device: str = ""


def from_meter(size: Size, text: str, warmup: int) -> Measurement | None:
    """Compute the measurement from the lines of a meter file; None if there are too few."""
    ticks, facts = _read(text)
    if not facts and ticks:  # train.report in a script: skip the warm-up steps here
        first = ticks[0]["step"]
        ticks = [tick for tick in ticks if tick["step"] >= first + warmup]
    if len(ticks) < 2:
        return None
    before, after = ticks[0], ticks[-1]
    seconds, steps = after["at"] - before["at"], after["step"] - before["step"]
    samples = after["samples"] - before["samples"]
    if seconds <= 0 or steps <= 0 or samples <= 0:
        return None
    known = {name: facts[name] for name in _OF_FACTS if name in facts}
    return Measurement(
        size=size,
        source=RUN if facts else SAID,
        samples_per_s=samples / seconds,
        seconds=seconds,
        samples=samples,
        step_s=seconds / steps,
        effective_batch=samples / steps,
        **known,
    )


_OF_FACTS = ("data_s", "exchange_s", "exchange_bytes", "processes", "cores", "load", "device")


def from_clock(size: Size, samples: int, seconds: float) -> Measurement:
    """Compute the measurement from declared samples and the run's total time, start-up included."""
    return Measurement(
        size=size, source=CLOCK, samples_per_s=samples / seconds, seconds=seconds, samples=samples
    )


def _read(text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return ticks and facts. A truncated last line is skipped."""
    ticks: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if "facts" in found:
            facts = found["facts"]
        else:
            ticks.append(found)
    return ticks, facts
