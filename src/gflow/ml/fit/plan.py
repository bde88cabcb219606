"""Planner: the fastest way to train a model with a given effective batch that is expected to fit.

Four recorded runs (two batches, with and without checkpointing) give the memory of any batch. Sharding, 8-bit
states and offloading are modelled by rules (`sharding`). Ways are tried in order of estimated speed
(`speed`), and each is replayed on an allocator with the GPU's capacity.
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
# Factors on the time of a step.
COST = {
    "none": 1.0,  # the all-reduce overlaps with the backward pass
    "zero1": 1.02,
    "zero2": 1.04,
    "fsdp": 1.10,  # weights are gathered twice, mostly overlapped
    "fsdp without NVLink": 1.60,
    "8-bit": 1.02,
}
DOUBT_EIGHT_BIT = "8-bit states are modelled by a rule (a quarter of the size), which was not measured"
ALTERNATIVES = 5


TECHNIQUES = ("8-bit", "offload", "sharding", *(one for one in SHARDING if one != "none"), "checkpointing")
# What carries out a technique that `gflow.train.Run` does not. Run offloads what FSDP shards.
TOOLS = {"zero1": "DeepSpeed", "zero2": "DeepSpeed", "offload": "DeepSpeed", "8-bit": "bitsandbytes"}


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train, with its predicted memory and speed."""

    micro_batch: int
    accumulate: int
    checkpointing: bool
    sharding: str
    eight_bit: bool
    offload: bool
    gpus: int
    # Per GPU, of the process with the CUDA context.
    bytes: int = 0
    share: float = 0
    # Relative to the fastest way.
    relative_speed: float = 0

    @property
    def tools(self) -> list[str]:
        """What it needs besides gflow.train."""
        is_offloaded = self.offload and self.sharding != "fsdp"
        used = [self.sharding, *(["offload"] if is_offloaded else []), *(["8-bit"] if self.eight_bit else [])]
        return sorted({TOOLS[one] for one in used if one in TOOLS})

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
    expandable_segments: bool = False
    effective_batch: int
    sequence: int
    confidence: str
    doubts: list[str] = []
    advice: list[str] = []
    chosen: Way
    # Its number in the list of all ways, counted from 1.
    taken: int = 1
    alternatives: list[Way]

    @property
    def ways(self) -> list[Way]:
        """All ways, in the order of their numbers."""
        return [*self.alternatives[: self.taken - 1], self.chosen, *self.alternatives[self.taken - 1 :]]

    @property
    def micro_batch(self) -> int:
        return self.chosen.micro_batch

    @property
    def run(self) -> dict[str, Any]:
        """Arguments for `gflow.train.Run`."""
        way = self.chosen
        if way.tools:
            raise Refused(
                f"this plan needs {' and '.join(way.tools)}: gflow.train alone cannot carry it out",
                hint="gflow plan --without 8-bit,offload,zero1,zero2 makes a plan for gflow.train",
            )
        if self.precision == "fp16-pure":
            raise Refused(
                "gflow.train does not train weights in fp16", hint="plan with --precision fp16 or bf16-pure"
            )
        return {
            **({"expandable_segments": True} if self.expandable_segments else {}),
            **({"offload": True} if way.offload else {}),
            "precision": self.precision,
            "effective_batch": self.effective_batch,
            "gradient_checkpointing": way.checkpointing,
            "clip": self.clip,
            "strategy": {"fsdp": "fsdp"}.get(way.sharding, "ddp") if way.gpus > 1 else "auto",
        }


def read(path: str) -> Plan:
    """Read a plan that `gflow plan --out` wrote."""
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
    """Memory and work of one model trained in one way, for any batch."""

    doubts: list[str]

    @property
    def confidence(self) -> str: ...

    def needed(self, batch: int, way: Shaping, cap: int | None = None) -> int | None: ...

    def work(self, batch: int) -> Work: ...


class PlanRequest(NamedTuple):
    """The batch to train, the GPUs to use, and the allowed techniques."""

    gpu: Gpu
    gpus: int
    effective_batch: int
    sequence: int
    precision: str
    # Whether the optimizer has states that can be stored in 8 bit.
    has_states: bool = True
    # Excluded techniques.
    without: frozenset[str] = frozenset()
    # Which of the ways to choose, counted from 1.
    take: int = 1


def plan(runs: dict[bool, Run], request: PlanRequest) -> Plan:
    """Make a plan. `runs`: by whether checkpointing is on; True only if the model supports it."""
    found = list(_fitting(runs, request))
    if not found:
        raise _refusal(runs, request)
    best = found[0][0]
    ways = [msgspec.structs.replace(way, relative_speed=round(best / time, 3)) for time, way in found]
    first = _first_choice(ways)
    ways = [first, *(way for way in ways if way is not first)]
    if request.take > len(ways):
        raise UsageError(f"there is no way {request.take}: {len(ways)} fit", hint="gflow plan lists them")
    chosen = ways.pop(request.take - 1)
    run = runs[chosen.checkpointing]
    doubts = _doubts(chosen, run)
    is_rule = len(doubts) > len(run.doubts) and run.confidence == "high"
    return Plan(
        gpu=request.gpu.name,
        precision=request.precision,
        effective_batch=request.effective_batch,
        sequence=request.sequence,
        confidence="medium" if is_rule else run.confidence,
        doubts=doubts,
        advice=_advice(request),
        chosen=chosen,
        taken=request.take,
        alternatives=ways,
    )


def _first_choice(ways: list[Way]) -> Way:
    """The fastest way that gflow.train carries out; the fastest of all if there is none."""
    return next((way for way in ways if not way.tools), ways[0])


def _fitting(runs: dict[bool, Run], request: PlanRequest) -> Iterator[tuple[float, Way]]:
    """Yield the fastest ways that fit, one per combination of techniques, each with its best micro-batch.

    One of them needs no tool besides gflow.train, if such a way fits.
    """
    room = int(TIGHT * request.gpu.room)
    whole = request.gpu.room + request.gpu.card.context
    queue = [(_time(way, runs, request), index, way) for index, way in enumerate(_kinds(runs, request))]
    heapq.heapify(queue)
    left, has_plain = 1 + ALTERNATIVES, False
    while queue and (left > 0 or not has_plain):
        time, index, way = heapq.heappop(queue)
        if left <= 0 and way.tools:
            continue
        needed = runs[way.checkpointing].needed(way.micro_batch, way.shaping, room)
        if needed is not None:
            size = needed + request.gpu.card.context
            yield time, msgspec.structs.replace(way, bytes=size, share=round(size / whole, 3))
            left, has_plain = left - 1, has_plain or not way.tools
            continue
        smaller = _smaller(way)
        if smaller is not None:
            heapq.heappush(queue, (_time(smaller, runs, request), index, smaller))


def _kinds(runs: Iterable[bool], request: PlanRequest) -> Iterator[Way]:
    """Yield all combinations of techniques, each with the largest micro-batch for the effective batch."""
    for count in sorted({*(1 << power for power in range(request.gpus.bit_length())), request.gpus}):
        if request.effective_batch % count:
            continue
        for is_on in runs:
            for sharding in _shardings(count, request.without):
                for eight_bit, offload in ((False, False), (True, False), (False, True)):
                    if eight_bit and (not request.has_states or "8-bit" in request.without):
                        continue
                    if offload and not _may_offload(sharding, request):
                        continue
                    yield Way(
                        micro_batch=request.effective_batch // count,
                        accumulate=1,
                        checkpointing=is_on,
                        sharding=sharding,
                        eight_bit=eight_bit,
                        offload=offload,
                        gpus=count,
                    )


def _may_offload(sharding: str, request: PlanRequest) -> bool:
    """FSDP does not offload with fp16: the gradient scaler works on the GPU."""
    return "offload" not in request.without and (sharding != "fsdp" or request.precision != "fp16")


def _shardings(gpus: int, without: frozenset[str]) -> list[str]:
    if gpus == 1 or "sharding" in without:
        return ["none"]
    return [one for one in SHARDING if one not in without]


def _smaller(way: Way) -> Way | None:
    """Return the same way with the next smaller micro-batch that divides the share of a GPU."""
    share = way.micro_batch * way.accumulate
    for size in range(way.micro_batch - 1, 0, -1):
        if share % size == 0:
            return msgspec.structs.replace(way, micro_batch=size, accumulate=share // size)
    return None


def _time(way: Way, runs: dict[bool, Run], request: PlanRequest) -> float:
    """Estimated time of one effective batch, in seconds."""
    work = runs[way.checkpointing].work(way.micro_batch)
    time = seconds(work, request.gpu, request.precision, way.accumulate, gpus=way.gpus, offload=way.offload)
    is_slow = way.sharding == "fsdp" and not request.gpu.nvlink
    time *= COST["fsdp without NVLink" if is_slow else way.sharding]
    return time * (COST["8-bit"] if way.eight_bit else 1)


def _advice(request: PlanRequest) -> list[str]:
    """Name the faster precision, if the GPU has it. The default is that of PyTorch, fp32."""
    if request.precision != "fp32" or not request.gpu.has_bf16:
        return []
    return ["bf16 is faster on this GPU: --precision bf16"]


def _doubts(way: Way, run: Run) -> list[str]:
    """Return the doubts of the run and those of the rules that the way uses."""
    rules = [DOUBT] if not way.shaping.sharing.is_plain else []
    return [*run.doubts, *rules, *([DOUBT_EIGHT_BIT] if way.eight_bit else [])]


def _refusal(runs: dict[bool, Run], request: PlanRequest) -> Refused:
    run = runs[max(runs)]
    ways = _kinds([max(runs)], request)
    sizes = [run.needed(1, way.shaping) or 0 for way in ways]
    least = (min(sizes) + request.gpu.card.context) / (1 << 30)
    return Refused(
        f"nothing fits on {request.gpus} x {request.gpu.name}: it needs at least {least:.1f} GiB on each GPU",
        hint="more GPUs or larger ones, a shorter sequence, or adapters: --lora 16",
    )
