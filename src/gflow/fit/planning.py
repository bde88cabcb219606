"""From a model, some GPUs and a wanted batch to the fastest way of training that is expected to fit.

Two runs by shape (one and two examples), with and without checkpointing, give memory as a line over the
batch; sharding, 8-bit states and offloading are rules on top. Speeds are relative: what each technique costs
is in `COST`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from gflow.errors import Refused
from gflow.fit.answer import Estimate
from gflow.fit.catalogue import Gpu
from gflow.fit.verdict import TIGHT

SHARDING = ("none", "zero1", "zero2", "fsdp")
# Time of a step, as a multiple.
COST = {
    "checkpointing": 1.30,  # one more forward pass of three
    "zero1": 1.02,
    "zero2": 1.04,
    "fsdp": 1.10,  # weights are gathered twice, mostly behind the arithmetic
    "fsdp without NVLink": 1.60,
    "8-bit": 1.02,
    "offload": 2.5,  # states cross PCIe every step
}
# Tokens in flight at which a GPU works at half its speed.
HALF_SPEED_TOKENS = 1024
# Adam's two states in 8 bit instead of 32.
EIGHT_BIT = 0.25
ALTERNATIVES = 5


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train, with what it takes and how fast it is expected to be."""

    micro_batch: int
    accumulate: int
    checkpointing: bool
    sharding: str
    eight_bit: bool
    offload: bool
    gpus: int
    # On each GPU, whole process.
    bytes: int
    share: float
    # Against the fastest way found.
    relative_speed: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    gpu: str
    precision: str
    effective_batch: int
    sequence: int
    confidence: str
    chosen: Way
    alternatives: list[Way]


Measure = Callable[[bool, int], Estimate]


def plan(measure: Measure, gpu: Gpu, gpus: int, effective_batch: int, sequence: int, precision: str) -> Plan:
    """`measure(checkpointing, batch)` predicts one GPU alone."""
    lines = {is_on: (measure(is_on, 1), measure(is_on, 2)) for is_on in (False, True)}
    room = TIGHT * (gpu.room + gpu.card.context)
    sized = [_sized(way, lines[way.checkpointing], gpu) for way in _ways(gpus, effective_batch)]
    found = [(_time(way, sequence, gpu), way) for way in sized if way.bytes <= room]
    if not found:
        least = min(way.bytes for way in sized) / (1 << 30)
        raise Refused(
            f"nothing makes it fit on {gpus} x {gpu.name}: it takes {least:.1f} GiB on each at least",
            hint="more GPUs or larger ones, a shorter sequence, or adapters: --lora 16",
        )
    found.sort(key=lambda item: (item[0], item[1].bytes))
    best = found[0][0]
    ways = [msgspec.structs.replace(way, relative_speed=round(best / time, 3)) for time, way in found]
    return Plan(
        gpu=gpu.name,
        precision=precision,
        effective_batch=effective_batch,
        sequence=sequence,
        confidence=_confidence(ways[0], lines[ways[0].checkpointing][0]),
        chosen=ways[0],
        alternatives=_different(ways[0], ways[1:])[:ALTERNATIVES],
    )


def _ways(gpus: int, effective_batch: int) -> Iterator[Way]:
    """Everything that makes the effective batch exactly."""
    used = [
        count for count in range(1, gpus + 1) if effective_batch % count == 0 and count & (count - 1) == 0
    ]
    for count in used:
        share = effective_batch // count
        micros = [size for size in range(1, share + 1) if share % size == 0]
        for micro in micros:
            for is_on in (False, True):
                for sharding in SHARDING if count > 1 else ("none",):
                    for eight_bit, offload in ((False, False), (True, False), (False, True)):
                        yield Way(
                            micro_batch=micro,
                            accumulate=share // micro,
                            checkpointing=is_on,
                            sharding=sharding,
                            eight_bit=eight_bit,
                            offload=offload,
                            gpus=count,
                            bytes=0,
                            share=0,
                            relative_speed=0,
                        )


def _sized(way: Way, line: tuple[Estimate, Estimate], gpu: Gpu) -> Way:
    one, two = line
    slope = max(0, two.peak_reserved_bytes - one.peak_reserved_bytes)
    size = one.peak_reserved_bytes + (way.micro_batch - 1) * slope
    learned, whole = one.trainable_params, max(1, one.total_params)
    weights = one.breakdown["parameters"]
    gradients = weights * learned // whole
    states = one.breakdown["optimizer"]
    if way.eight_bit:
        size -= int(states * (1 - EIGHT_BIT))
        states = int(states * EIGHT_BIT)
    if way.gpus > 1:
        size += gradients  # the buckets in which gradients travel
    kept = 1 / way.gpus
    if way.sharding != "none":
        size -= int(states * (1 - kept))
        states = int(states * kept)
    if way.sharding in ("zero2", "fsdp"):
        size -= int(2 * gradients * (1 - kept))
    if way.sharding == "fsdp":
        # Two blocks are whole at any time; models have a dozen or more.
        size -= int(weights * (1 - kept)) - weights // 6
    if way.offload:
        size -= states
    size = max(size, 0) + gpu.card.context
    return msgspec.structs.replace(way, bytes=size, share=round(size / (gpu.room + gpu.card.context), 3))


def _time(way: Way, sequence: int, gpu: Gpu) -> float:
    """Of one effective batch, in units of one example at full speed on one GPU."""
    tokens = way.micro_batch * sequence
    time = way.micro_batch * way.accumulate * (1 + HALF_SPEED_TOKENS / tokens)
    if way.checkpointing:
        time *= COST["checkpointing"]
    if way.sharding != "none":
        is_slow = way.sharding == "fsdp" and not gpu.nvlink
        time *= COST["fsdp without NVLink" if is_slow else way.sharding]
    if way.eight_bit:
        time *= COST["8-bit"]
    return time * (COST["offload"] if way.offload else 1)


def _confidence(way: Way, found: Estimate) -> str:
    """Rules on top of a prediction make it less certain, never more."""
    is_plain = way.gpus == 1 and not way.eight_bit and not way.offload
    return found.confidence if is_plain or found.confidence == "rough" else "medium"


def _different(chosen: Way, ways: list[Way]) -> list[Way]:
    """The best of each other kind: people choose between techniques, not between batch sizes."""

    def kind(way: Way) -> tuple[object, ...]:
        return way.checkpointing, way.sharding, way.eight_bit, way.offload, way.gpus

    seen, kept = {kind(chosen)}, []
    for way in ways:
        if kind(way) not in seen:
            seen.add(kind(way))
            kept.append(way)
    return kept
