"""From the tape to the answer: peaks, what they consist of, and whether a card has the room."""

from __future__ import annotations

from typing import Any

import msgspec

from gflow.ml.fit.cuda.allocation_trace import AllocationTrace, Request, play
from gflow.ml.fit.cuda.allocator import Allocator, OutOfMemory
from gflow.ml.fit.cuda.architectures import HOPPER, Architecture

GIB = 1 << 30
KINDS = ("parameters", "gradients", "optimizer", "activations", "temporaries", "workspace", "batch")
LARGEST = 10


class Held(msgspec.Struct, frozen=True):
    """One of the largest stretches of memory at the peak."""

    bytes: int
    kind: str
    module: str
    operator: str


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a training run takes on one GPU. Bytes throughout."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    # Reserved, and what driver, context and loaded kernels take beside it.
    process_bytes: int
    # high: every operator is followed; medium: some library's choice is modelled; rough: a formula.
    confidence: str
    # Why it is not high.
    doubts: list[str]
    # At the peak of allocated memory, by what it is for.
    breakdown: dict[str, int]
    peak_phase: str
    # Counted from one; 0 is the making of the model.
    peak_step: int
    largest: list[Held]
    total_params: int
    trainable_params: int

    def keys(self) -> dict[str, Any]:
        """The same under the names of the usual snippet, in GB (10^9)."""
        parts = self.breakdown
        return {
            "total_gb": self.peak_allocated_bytes / 1e9,
            "params_gb": parts["parameters"] / 1e9,
            "grads_gb": parts["gradients"] / 1e9,
            "optimizer_gb": parts["optimizer"] / 1e9,
            "activations_gb": (parts["activations"] + parts["temporaries"]) / 1e9,
        }


def answer(tape: AllocationTrace, card: Architecture = HOPPER) -> Estimate:
    whole = play(tape, Allocator())
    at, live = _peak(tape)
    breakdown = dict.fromkeys(KINDS, 0)
    for request, size in live:
        breakdown[kind_of(request)] += size
    phase, step = _where(tape, at)
    live.sort(key=lambda held: -held[1])
    return Estimate(
        peak_allocated_bytes=whole.peak_allocated,
        peak_reserved_bytes=whole.peak_reserved,
        process_bytes=whole.peak_reserved + card.context,
        confidence="medium" if tape.doubts else "high",
        doubts=sorted(tape.doubts),
        breakdown=breakdown,
        peak_phase=phase,
        peak_step=step,
        largest=[
            Held(size, kind_of(request), request.module, request.operator.removeprefix("aten."))
            for request, size in live[:LARGEST]
        ],
        total_params=tape.parameters,
        trainable_params=tape.learned,
    )


def fits(tape: AllocationTrace, room: int) -> bool:
    """Whether the run gets through with so many bytes, giving free memory back to the card if it must."""
    try:
        play(tape, Allocator(room))
    except OutOfMemory:
        return False
    return True


def kind_of(request: Request) -> str:
    if request.kind:
        return request.kind
    return "activations" if request.phase in ("model", "forward") else "temporaries"


def _peak(tape: AllocationTrace) -> tuple[int, list[tuple[Request, int]]]:
    """The move that reaches the peak, and what is held then, with the sizes of the blocks."""
    allocator = Allocator()
    live: dict[int, Any] = {}
    top, at = 0, 0
    for place, move in enumerate(tape.moves):
        if move >= 0:
            live[move] = allocator.allocate(tape.requests[move].size)
            if allocator.allocated > top:
                top, at = allocator.allocated, place
        else:
            allocator.free(live.pop(-1 - move))
    allocator, live = Allocator(), {}
    for move in tape.moves[: at + 1]:
        if move >= 0:
            live[move] = allocator.allocate(tape.requests[move].size)
        else:
            allocator.free(live.pop(-1 - move))
    return at, [(tape.requests[number], block.size) for number, block in live.items()]


def _where(tape: AllocationTrace, at: int) -> tuple[str, int]:
    phase, step = "model", 0
    for place, name, number in tape.marks:
        if place > at:
            break
        phase, step = name, number + 1
    return phase, step
