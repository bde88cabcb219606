"""Batch scaling: memory of a run for any batch, from the allocation traces of two batches.

Both traces have the same requests in the same order; the size of each is interpolated linearly. Workspaces of
kernels may differ: they are taken from the larger trace, in proportion to the batch. If the traces differ in
anything else, every batch is recorded separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gflow.ml.fit.cuda.allocation_trace import AllocationTrace, Request
from gflow.ml.fit.cuda.allocator import OutOfMemory
from gflow.ml.fit.formula import EIGHT_BIT
from gflow.ml.fit.recipe import MOST_BATCH
from gflow.ml.fit.report import confidence_of
from gflow.ml.fit.sharding import Shaping, extras, per_gpu_bytes
from gflow.ml.fit.speed import Work, work_of

# The recorded batches. Not 1: many kernels treat it specially.
POINTS = (2, 4)


class BatchScaling:
    """Memory and work of one way to train a model, for any batch."""

    def __init__(self, record: Callable[[int], AllocationTrace]) -> None:
        self._record = record
        self._traces = {batch: record(batch) for batch in POINTS}
        few, many = (self._traces[batch] for batch in POINTS)
        self._lines = _lines(few, many)
        self.is_linear = self._lines is not None
        grave = few.reserved_doubts | many.reserved_doubts
        self.doubts = [*sorted(few.doubts | many.doubts), *sorted(grave)]
        self.confidence = confidence_of(self.doubts, grave)

    def needed(self, batch: int, way: Shaping, cap: int | None = None) -> int | None:
        """Return the peak reserved bytes on each GPU; None if the run needs more than `cap`."""
        return needed(*self._trace_for(batch), way, cap)

    def largest(self, room: int) -> int:
        """Return the largest batch that fits into `room` bytes; 0 if the traces cannot be interpolated."""
        if not self.is_linear:
            return 0
        below, above = 0, MOST_BATCH + 1
        while above - below > 1:
            middle = (below + above) // 2
            is_small = self.needed(middle, Shaping(), room) is not None
            below, above = (middle, above) if is_small else (below, middle)
        return below

    def work(self, batch: int) -> Work:
        """Return the work of one micro-batch and of one optimizer update."""
        if not self.is_linear:
            return work_of(self._trace_for(batch)[0])
        few, many = (work_of(self._traces[point]) for point in POINTS)
        share = (batch - POINTS[0]) / (POINTS[1] - POINTS[0])
        return Work(*(low + share * (high - low) for low, high in zip(few, many, strict=True)))

    def _trace_for(self, batch: int) -> tuple[AllocationTrace, Sequence[int]]:
        if batch in self._traces or self._lines is None:
            trace = self._traces.get(batch) or self._record(batch)
            self._traces[batch] = trace
            return trace, [request.size for request in trace.requests]
        share = batch - POINTS[1]
        return self._traces[POINTS[1]], [max(0, round(size + share * each)) for size, each in self._lines]


def needed(trace: AllocationTrace, sizes: Sequence[int], way: Shaping, cap: int | None = None) -> int | None:
    """Return the peak reserved bytes per GPU of the trace, changed as `way` says; None: more than `cap`."""
    narrow = _eight_bit_factor(trace) if way.eight_bit else 1.0
    left = [_shaped_size(request, size, way, narrow)
            for request, size in zip(trace.requests, sizes, strict=True)]  # fmt: skip
    allocator = trace.allocator(cap)
    try:
        for size in [
            *extras(trace, way.sharing),
            *(_accumulated_gradients(trace, way) if way.accumulates else ()),
        ]:
            allocator.allocate(size)
        live = {}
        for move in trace.moves:
            if move >= 0:
                live[move] = allocator.allocate(left[move])
            else:
                allocator.free(live.pop(-1 - move))
    except OutOfMemory:
        return None
    return allocator.peak_reserved


def _lines(few: AllocationTrace, many: AllocationTrace) -> list[tuple[int, float]] | None:
    """Return size and bytes per additional sample of each request of `many`; None if the traces differ."""
    (order, small), (same, large) = _without_workspaces(few), _without_workspaces(many)
    if order != same:
        return None
    released = {-1 - move for move in many.moves if move < 0}
    lines = [(request.size, 0.0) for request in many.requests]
    for number, request in enumerate(many.requests):
        if number in released and request.kind == "workspace":
            lines[number] = request.size, request.size / POINTS[1]
    for before, after in zip(small, large, strict=True):
        size = many.requests[after].size
        lines[after] = size, (size - few.requests[before].size) / (POINTS[1] - POINTS[0])
    return lines


def _without_workspaces(trace: AllocationTrace) -> tuple[list[int], list[int]]:
    """Return the moves without workspaces, renumbered; and the old request numbers by the new ones."""
    moves, numbers = list[int](), dict[int, int]()
    for move in trace.moves:
        number = move if move >= 0 else -1 - move
        if trace.requests[number].kind == "workspace":
            continue
        if move >= 0:
            numbers[number] = len(numbers)
        moves.append(numbers[number] if move >= 0 else -1 - numbers[number])
    return moves, list(numbers)


def _shaped_size(request: Request, size: int, way: Shaping, narrow: float) -> int:
    if way.eight_bit and request.phase == "optimizer":
        # The update is one fused kernel per tensor, without temporaries.
        size = int(size * narrow) if request.kind == "optimizer" else 0
    if way.accumulates and request.kind == "gradients":
        return 0  # see `_accumulated_gradients`
    return per_gpu_bytes(request, size, way.sharing)


def _accumulated_gradients(trace: AllocationTrace, way: Shaping) -> list[int]:
    """Return the gradients' sizes under accumulation: all stay until the update. The largest is counted
    twice, for the gradient being added."""
    sizes = [
        per_gpu_bytes(request, request.size, way.sharing)
        for request in {id(one): one for one in trace.requests}.values()
        if request.kind == "gradients" and request.step == 1
    ]
    return [*sizes, max(sizes)] if sizes else []


def _eight_bit_factor(trace: AllocationTrace) -> float:
    """Return the factor by which 8-bit storage shrinks the optimizer's states."""
    states = sum(
        {id(request): request.size for request in trace.requests if request.kind == "optimizer"}.values()
    )
    return min(1.0, EIGHT_BIT * trace.learned / states) if states else 1.0
