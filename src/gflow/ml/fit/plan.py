"""From a model, some GPUs and a wanted batch to the fastest way of training that is expected to fit.

Four runs by shape (two batches, with and without checkpointing) give the memory of any batch; sharding, 8-bit
states and offloading are rules on top (`sharing`). Ways are tried from the fastest on, by a rough idea of
their speed (`speed`), and each is played to an allocator with the room of the card.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from gflow.errors import Refused, UsageError
from gflow.ml.fit.catalogue import Gpu
from gflow.ml.fit.fits import TIGHT
from gflow.ml.fit.sharding import DOUBT, SHARDING, Shaping, Sharing
from gflow.ml.fit.speed import Work, seconds

VERSION = 1
# Time of a step, as a multiple.
COST = {
    "none": 1.0,  # gradients travel behind the arithmetic
    "zero1": 1.02,
    "zero2": 1.04,
    "fsdp": 1.10,  # weights are gathered twice, mostly behind the arithmetic
    "fsdp without NVLink": 1.60,
    "8-bit": 1.02,
}
DOUBT_EIGHT_BIT = "8-bit states are a rule on top (a quarter of the size); they were not measured"
ALTERNATIVES = 5


TECHNIQUES = ("8-bit", "offload", "sharding", "checkpointing")


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
    bytes: int = 0
    share: float = 0
    # Against the fastest way found.
    relative_speed: float = 0

    @property
    def shaping(self) -> Shaping:
        sharing = Sharing(self.gpus, self.sharding, self.offload)
        return Shaping(sharing, self.eight_bit, self.accumulate > 1)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `gflow plan --out` writes (docs/fit.md has the format)."""

    version: int = VERSION
    gpu: str
    precision: str
    optimizer: str = "AdamW"
    clip: float | None = None
    lora: int = 0
    effective_batch: int
    sequence: int
    confidence: str
    doubts: list[str] = []
    chosen: Way
    alternatives: list[Way]

    @property
    def micro_batch(self) -> int:
        return self.chosen.micro_batch

    @property
    def run(self) -> dict[str, Any]:
        """What `gflow.train.Run` is told. Weights in 16 bit (`-pure`) are made so by who builds the model."""
        way = self.chosen
        if way.sharding in ("zero1", "zero2") or way.eight_bit or way.offload:
            raise Refused(
                "this plan shards, shrinks or offloads the optimizer, which gflow.train does not",
                hint="gflow plan --without 8-bit,offload, or take an alternative of the plan",
            )
        return {
            "precision": "fp32" if self.precision.endswith("-pure") else self.precision,
            "effective_batch": self.effective_batch,
            "gradient_checkpointing": way.checkpointing,
            "clip": self.clip,
            "strategy": {"fsdp": "fsdp"}.get(way.sharding, "ddp") if way.gpus > 1 else "auto",
        }


def read(path: str) -> Plan:
    """A plan that `gflow plan --out` wrote."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Plan)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{path} is not a plan: {error}", hint="gflow plan --out plan.json writes one"
        ) from None


class Run(Protocol):
    """One model trained in one way, for any batch."""

    doubts: list[str]

    @property
    def confidence(self) -> str: ...

    def needed(self, batch: int, way: Shaping, cap: int | None = None) -> int | None: ...

    def work(self, batch: int) -> Work: ...


class PlanRequest(NamedTuple):
    """What is to be trained on what."""

    gpu: Gpu
    gpus: int
    effective_batch: int
    sequence: int
    precision: str
    # Whether the optimizer has states that 8 bit can hold.
    has_states: bool = True
    # Techniques that somebody does not want.
    without: frozenset[str] = frozenset()


def plan(runs: dict[bool, Run], wish: PlanRequest) -> Plan:
    """`runs`: without checkpointing, and with it where the model can do that."""
    found = list(_fitting(runs, wish))
    if not found:
        raise _refusal(runs, wish)
    best = found[0][0]
    ways = [msgspec.structs.replace(way, relative_speed=round(best / time, 3)) for time, way in found]
    run = runs[ways[0].checkpointing]
    doubts = _doubts(ways[0], run)
    is_rule = len(doubts) > len(run.doubts) and run.confidence == "high"
    return Plan(
        gpu=wish.gpu.name,
        precision=wish.precision,
        effective_batch=wish.effective_batch,
        sequence=wish.sequence,
        confidence="medium" if is_rule else run.confidence,
        doubts=doubts,
        chosen=ways[0],
        alternatives=ways[1:],
    )


def _fitting(runs: dict[bool, Run], wish: PlanRequest) -> Iterator[tuple[float, Way]]:
    """The fastest ways that fit, one of each kind: people choose between techniques, not batch sizes."""
    room = int(TIGHT * wish.gpu.room)
    whole = wish.gpu.room + wish.gpu.card.context
    queue = [(_time(way, runs, wish), place, way) for place, way in enumerate(_kinds(runs, wish))]
    heapq.heapify(queue)
    left = 1 + ALTERNATIVES
    while queue and left:
        time, place, way = heapq.heappop(queue)
        needed = runs[way.checkpointing].needed(way.micro_batch, way.shaping, room)
        if needed is not None:
            size = needed + wish.gpu.card.context
            yield time, msgspec.structs.replace(way, bytes=size, share=round(size / whole, 3))
            left -= 1
            continue
        smaller = _smaller(way)
        if smaller is not None:
            heapq.heappush(queue, (_time(smaller, runs, wish), place, smaller))


def _kinds(runs: Iterable[bool], wish: PlanRequest) -> Iterator[Way]:
    """Every technique with the largest micro-batch there is; all make the effective batch exactly."""
    for count in (1 << power for power in range(wish.gpus.bit_length())):
        if wish.effective_batch % count:
            continue
        for is_on in runs:
            for sharding in SHARDING if count > 1 and "sharding" not in wish.without else ("none",):
                for eight_bit, offload in ((False, False), (True, False), (False, True)):
                    if eight_bit and (not wish.has_states or "8-bit" in wish.without):
                        continue
                    if offload and "offload" in wish.without:
                        continue
                    yield Way(
                        micro_batch=wish.effective_batch // count,
                        accumulate=1,
                        checkpointing=is_on,
                        sharding=sharding,
                        eight_bit=eight_bit,
                        offload=offload,
                        gpus=count,
                    )


def _smaller(way: Way) -> Way | None:
    """The same with the next smaller micro-batch that divides the share of a GPU."""
    share = way.micro_batch * way.accumulate
    for size in range(way.micro_batch - 1, 0, -1):
        if share % size == 0:
            return msgspec.structs.replace(way, micro_batch=size, accumulate=share // size)
    return None


def _time(way: Way, runs: dict[bool, Run], wish: PlanRequest) -> float:
    """Of one effective batch, in seconds."""
    work = runs[way.checkpointing].work(way.micro_batch)
    time = seconds(work, wish.gpu, wish.precision, way.accumulate, gpus=way.gpus, offload=way.offload)
    is_slow = way.sharding == "fsdp" and not wish.gpu.nvlink
    time *= COST["fsdp without NVLink" if is_slow else way.sharding]
    return time * (COST["8-bit"] if way.eight_bit else 1)


def _doubts(way: Way, run: Run) -> list[str]:
    """Rules on top of a prediction make it less certain, never more."""
    rules = [DOUBT] if not way.shaping.sharing.is_plain else []
    return [*run.doubts, *rules, *([DOUBT_EIGHT_BIT] if way.eight_bit else [])]


def _refusal(runs: dict[bool, Run], wish: PlanRequest) -> Refused:
    run = runs[max(runs)]
    ways = _kinds([max(runs)], wish)
    sizes = [run.needed(1, way.shaping) or 0 for way in ways]
    least = (min(sizes) + wish.gpu.card.context) / (1 << 30)
    return Refused(
        f"nothing makes it fit on {wish.gpus} x {wish.gpu.name}: it takes {least:.1f} GiB on each at least",
        hint="more GPUs or larger ones, a shorter sequence, or adapters: --lora 16",
    )
