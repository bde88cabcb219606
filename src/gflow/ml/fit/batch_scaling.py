"""A run for any batch, from the tapes of two: the same steps in the same order, each size on its own line.

Scratch of kernels may come and go with the batch; it is taken from the larger one, in proportion. Where the
two differ in more than that, batches are run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gflow.ml.fit.cuda.allocation_trace import AllocationTrace, Request
from gflow.ml.fit.cuda.allocator import Allocator, OutOfMemory
from gflow.ml.fit.formula import EIGHT_BIT
from gflow.ml.fit.recipe import MOST_BATCH
from gflow.ml.fit.sharding import Shaping, extras, kept
from gflow.ml.fit.speed import Work, work_of

# A batch of one is special to many kernels.
POINTS = (2, 4)


class BatchScaling:
    """One way to train a model, whatever the batch."""

    def __init__(self, record: Callable[[int], AllocationTrace]) -> None:
        self._record = record
        self._tapes = {batch: record(batch) for batch in POINTS}
        few, many = (self._tapes[batch] for batch in POINTS)
        self._lines = _lines(few, many)
        self.is_even = self._lines is not None
        self.doubts = sorted(few.doubts | many.doubts)

    @property
    def confidence(self) -> str:
        return "medium" if self.doubts else "high"

    def needed(self, batch: int, way: Shaping, cap: int | None = None) -> int | None:
        """The most that the allocator takes of each GPU; None if it needs more than `cap`."""
        return needed(*self._at(batch), way, cap)

    def largest(self, room: int) -> int:
        """The largest batch that fits into `room` as far as two can tell; 0 if they cannot."""
        if not self.is_even:
            return 0
        below, above = 0, MOST_BATCH + 1
        while above - below > 1:
            middle = (below + above) // 2
            is_small = self.needed(middle, Shaping(), room) is not None
            below, above = (middle, above) if is_small else (below, middle)
        return below

    def work(self, batch: int) -> Work:
        """What one such batch is to the GPU, and one update."""
        if not self.is_even:
            return work_of(self._at(batch)[0])
        few, many = (work_of(self._tapes[place]) for place in POINTS)
        share = (batch - POINTS[0]) / (POINTS[1] - POINTS[0])
        return Work(*(low + share * (high - low) for low, high in zip(few, many, strict=True)))

    def _at(self, batch: int) -> tuple[AllocationTrace, Sequence[int]]:
        if batch in self._tapes or self._lines is None:
            tape = self._tapes.get(batch) or self._record(batch)
            self._tapes[batch] = tape
            return tape, [request.size for request in tape.requests]
        share = batch - POINTS[1]
        return self._tapes[POINTS[1]], [max(0, round(size + share * each)) for size, each in self._lines]


def needed(tape: AllocationTrace, sizes: Sequence[int], way: Shaping, cap: int | None = None) -> int | None:
    """What the allocator takes of each GPU if the run of this tape is shaped so; None: more than `cap`."""
    narrow = _narrowing(tape) if way.eight_bit else 1.0
    left = [_left(request, size, way, narrow)
            for request, size in zip(tape.requests, sizes, strict=True)]  # fmt: skip
    allocator = Allocator(cap)
    try:
        for size in [*extras(tape, way.sharing), *(_held(tape, way) if way.accumulates else ())]:
            allocator.allocate(size)
        live = {}
        for move in tape.moves:
            if move >= 0:
                live[move] = allocator.allocate(left[move])
            else:
                allocator.free(live.pop(-1 - move))
    except OutOfMemory:
        return None
    return allocator.peak_reserved


def _lines(few: AllocationTrace, many: AllocationTrace) -> list[tuple[int, float]] | None:
    """Of every request of the larger batch its size, and what each further example adds; None: not alike."""
    (order, small), (same, large) = _ordered(few), _ordered(many)
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


def _ordered(tape: AllocationTrace) -> tuple[list[int], list[int]]:
    """The moves without the scratch of kernels, counted anew; and the old numbers by the new ones."""
    moves, numbers = list[int](), dict[int, int]()
    for move in tape.moves:
        number = move if move >= 0 else -1 - move
        if tape.requests[number].kind == "workspace":
            continue
        if move >= 0:
            numbers[number] = len(numbers)
        moves.append(numbers[number] if move >= 0 else -1 - numbers[number])
    return moves, list(numbers)


def _left(request: Request, size: int, way: Shaping, narrow: float) -> int:
    if way.eight_bit and request.phase == "optimizer":
        # The update is one kernel for each tensor, without results of its own.
        size = int(size * narrow) if request.kind == "optimizer" else 0
    if way.accumulates and request.kind == "gradients":
        return 0  # see `_held`
    return kept(request, size, way.sharing)


def _held(tape: AllocationTrace, way: Shaping) -> list[int]:
    """Gradients that wait for those of further batches: all of them are there until the update, and each
    further one only until it is added."""
    sizes = [
        kept(request, request.size, way.sharing)
        for request in {id(one): one for one in tape.requests}.values()
        if request.kind == "gradients" and request.step == 1
    ]
    return [*sizes, max(sizes)] if sizes else []


def _narrowing(tape: AllocationTrace) -> float:
    """What 8 bit make of the states."""
    states = sum(
        {id(request): request.size for request in tape.requests if request.kind == "optimizer"}.values()
    )
    return min(1.0, EIGHT_BIT * tape.learned / states) if states else 1.0
