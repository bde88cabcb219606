"""The allocation trace of a run: requests and releases of memory in order, with the phase of the step.

A trace is recorded once and can be replayed on any number of allocators, unlimited or with a GPU's capacity.
"""

from __future__ import annotations

from gflow.ml.fit.cuda.allocator import Allocator, ExpandableAllocator

# The phases of a step, in order.
PHASES = ("model", "forward", "backward", "optimizer")


class Request:
    """One allocation."""

    __slots__ = ("kind", "module", "operator", "phase", "size", "step")

    def __init__(self, size: int, kind: str, phase: str, step: int, operator: str, module: str) -> None:
        self.size = size
        self.kind = kind
        self.phase = phase
        self.step = step
        self.operator = operator
        self.module = module


class AllocationTrace:
    """Records the allocations of a model and its training steps."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        # `n` when request `n` is made, `-1 - n` when it is released.
        self.moves: list[int] = []
        # Where the phases begin: (index in moves, phase, step).
        self.marks: list[tuple[int, str, int]] = []
        self.phase = "model"
        self.step = 0
        self.module = ""
        # Floating-point operations and kernels of the second step's forward and backward passes.
        self.flops = 0
        self.kernels = 0
        # The model's parameters: all, and the trainable ones.
        self.parameters = self.learned = 0
        # Set at the end of the last step: later releases belong to no step.
        self.is_closed = False
        # Reasons for less than high confidence.
        self.doubts: set[str] = set()
        # Reasons for low confidence in the reserved memory alone.
        self.reserved_doubts: set[str] = set()
        # Whether the allocator has expandable segments.
        self.is_expandable = False
        # Version of the PyTorch that recorded it.
        self.torch = ""

    def allocator(self, cap: int | None = None) -> Allocator:
        """Return a new allocator with the settings of the run."""
        return ExpandableAllocator(cap) if self.is_expandable else Allocator(cap)

    def mark(self, phase: str, step: int) -> None:
        self.phase, self.step = phase, step
        self.marks.append((len(self.moves), phase, step))

    def request(self, size: int, operator: str, kind: str = "") -> int:
        number = len(self.requests)
        self.requests.append(Request(size, kind, self.phase, self.step, operator, self.module))
        self.moves.append(number)
        return number

    def release(self, number: int) -> None:
        if not self.is_closed:
            self.moves.append(-1 - number)

    def repeat(self, begin: int) -> None:
        """Append a copy of all moves since `begin`, which is one complete step.

        Where the step released an allocation of the step before it (its batch, its loss), the copy releases
        the corresponding allocation of the copied step.
        """
        moves = self.moves[begin:]
        marks: dict[int, list[tuple[str, int]]] = {}
        for index, phase, step in self.marks:
            if index >= begin:
                marks.setdefault(index - begin, []).append((phase, step + 1))
        unreleased = self._unreleased(moves)
        copies: dict[int, int] = {}
        for index, move in enumerate(moves):
            self.marks += [(len(self.moves), *mark) for mark in marks.get(index, ())]
            if move >= 0:
                copies[move] = len(self.requests)
                self.moves.append(len(self.requests))
                self.requests.append(self.requests[move])
                continue
            number = -1 - move
            if number in copies:
                self.moves.append(-1 - copies[number])
            elif waiting := unreleased.get(self.requests[number].size):
                self.moves.append(-1 - waiting.pop(0))

    def _unreleased(self, moves: list[int]) -> dict[int, list[int]]:
        """Return the requests of these moves that were not released, by size."""
        left: dict[int, list[int]] = {}
        released = {-1 - move for move in moves if move < 0}
        for move in moves:
            if move >= 0 and move not in released:
                left.setdefault(self.requests[move].size, []).append(move)
        return left


def replay(trace: AllocationTrace, allocator: Allocator) -> Allocator:
    """Replay the trace on `allocator`."""
    requests = trace.requests
    live = {}
    for move in trace.moves:
        if move >= 0:
            live[move] = allocator.allocate(requests[move].size)
        else:
            allocator.free(live.pop(-1 - move))
    return allocator
