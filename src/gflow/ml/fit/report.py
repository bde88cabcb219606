"""Evaluation of an allocation trace: peaks, their breakdown, and whether the run fits on a GPU."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from gflow.ml.fit.cuda.allocation_trace import AllocationTrace, Request, replay
from gflow.ml.fit.cuda.allocator import OutOfMemory
from gflow.ml.fit.cuda.architectures import HOPPER, Architecture
from gflow.ml.fit.torch_versions import MEASURED

GIB = 1 << 30
KINDS = ("parameters", "gradients", "optimizer", "activations", "temporaries", "workspace", "batch")
LARGEST = 10


class LiveAllocation(msgspec.Struct, frozen=True):
    """One of the largest allocations at the peak."""

    bytes: int
    kind: str
    module: str
    operator: str


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a training run on one GPU, in bytes."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    # Reserved memory plus driver, CUDA context and loaded kernels.
    process_bytes: int
    # high: every operator is known exactly; medium: a library's choice is modelled; low: such a choice was
    # far off when it was measured, or a rule never was; rough: a formula.
    confidence: str
    # Of each figure. Only reserved has `low`.
    confidence_allocated: str
    confidence_reserved: str
    # Reasons for less than high confidence.
    doubts: list[str]
    # Allocated memory at its peak, by kind.
    breakdown: dict[str, int]
    peak_phase: str
    # Counted from 1; 0: while the model is created.
    peak_step: int
    largest: list[LiveAllocation]
    total_params: int
    trainable_params: int
    # The PyTorch that predicted, and the one that was measured; empty for a formula.
    torch: str = ""
    measured_with: str = ""

    def in_gb(self) -> dict[str, float]:
        """Return the main figures under conventional names, in GB (10^9)."""
        parts = self.breakdown
        return {
            "total_gb": self.peak_allocated_bytes / 1e9,
            "params_gb": parts["parameters"] / 1e9,
            "grads_gb": parts["gradients"] / 1e9,
            "optimizer_gb": parts["optimizer"] / 1e9,
            "activations_gb": (parts["activations"] + parts["temporaries"]) / 1e9,
        }


def evaluate(trace: AllocationTrace, card: Architecture = HOPPER) -> Estimate:
    """Evaluate a trace on an unlimited allocator."""
    whole = replay(trace, trace.allocator())
    at, live = _peak(trace)
    breakdown = dict.fromkeys(KINDS, 0)
    for request, size in live:
        breakdown[kind_of(request)] += size
    phase, step = _where(trace, at)
    live.sort(key=lambda held: -held[1])
    confidence = confidence_of(trace.doubts, ())
    return Estimate(
        peak_allocated_bytes=whole.peak_allocated,
        peak_reserved_bytes=whole.peak_reserved,
        process_bytes=whole.peak_reserved + card.context,
        confidence=confidence,
        confidence_allocated=confidence,
        confidence_reserved=confidence_of(trace.doubts, trace.reserved_doubts),
        doubts=sorted(trace.doubts) + sorted(trace.reserved_doubts),
        breakdown=breakdown,
        peak_phase=phase,
        peak_step=step,
        largest=[
            LiveAllocation(size, kind_of(request), request.module, request.operator.removeprefix("aten."))
            for request, size in live[:LARGEST]
        ],
        total_params=trace.parameters,
        trainable_params=trace.learned,
        torch=trace.torch,
        measured_with=MEASURED,
    )


def confidence_of(doubts: Collection[str], grave: Collection[str]) -> str:
    """Return the confidence in a figure. `grave`: the doubts that make it low."""
    if grave:
        return "low"
    return "medium" if doubts else "high"


def fits(trace: AllocationTrace, room: int) -> bool:
    """Whether the run fits into `room` bytes, releasing free segments if necessary."""
    try:
        replay(trace, trace.allocator(room))
    except OutOfMemory:
        return False
    return True


def kind_of(request: Request) -> str:
    if request.kind:
        return request.kind
    return "activations" if request.phase in ("model", "forward") else "temporaries"


def _peak(trace: AllocationTrace) -> tuple[int, list[tuple[Request, int]]]:
    """Return the index of the move that reaches the peak, and the requests live then with block sizes."""
    allocator = trace.allocator()
    live: dict[int, Any] = {}
    top, at = 0, 0
    for index, move in enumerate(trace.moves):
        if move >= 0:
            live[move] = allocator.allocate(trace.requests[move].size)
            if allocator.allocated > top:
                top, at = allocator.allocated, index
        else:
            allocator.free(live.pop(-1 - move))
    allocator, live = trace.allocator(), {}
    for move in trace.moves[: at + 1]:
        if move >= 0:
            live[move] = allocator.allocate(trace.requests[move].size)
        else:
            allocator.free(live.pop(-1 - move))
    return at, [(trace.requests[number], block.size) for number, block in live.items()]


def _where(trace: AllocationTrace, at: int) -> tuple[str, int]:
    phase, step = "model", 0
    for index, name, number in trace.marks:
        if index > at:
            break
        phase, step = name, number + 1
    return phase, step
