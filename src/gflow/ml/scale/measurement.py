"""What one run was like, from what it left: its meter's file, or the clock alone. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gflow.ml.scale.sizes import Size

# Where the figures come from.
RUN, SAID, CLOCK = "gflow.train", "train.report", "clock"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One size. What was not measured is None."""

    size: Size
    source: str
    samples_per_s: float
    seconds: float
    samples: int
    # Of one step: its length, the samples in it over all GPUs, the longest wait for data of any rank, one
    # exchange of all gradients with nothing else to do.
    step_s: float | None = None
    effective_batch: float | None = None
    data_s: float | None = None
    exchange_s: float | None = None
    exchange_bytes: int = 0
    # On one node.
    processes: int = 0
    cores: int = 0
    # The first node's load average at the end: how many processes wanted a core.
    load: float = 0.0
    device: str = ""


def from_meter(size: Size, text: str, warmup: int) -> Measured | None:
    """What the lines of a meter tell; None: not enough of them."""
    ticks, facts = _read(text)
    if not facts and ticks:  # a script's own words: its first steps count as warm-up
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
    return Measured(
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


def by_the_clock(size: Size, samples: int, seconds: float) -> Measured:
    """Samples that somebody declared, over the whole time of the run, its start included."""
    return Measured(
        size=size, source=CLOCK, samples_per_s=samples / seconds, seconds=seconds, samples=samples
    )


def _read(text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Looks at the clock, and facts. A line that was cut off by an end counts nothing."""
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
