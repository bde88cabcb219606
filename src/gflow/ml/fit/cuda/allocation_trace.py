"""What a run did with memory, in order: requests, releases, and where in the step they happened.

A tape is made once and can be played to any number of allocators: without an end, or with the room of a card.
"""

from __future__ import annotations

from gflow.ml.fit.cuda.allocator import Allocator

# The parts of a step, in order.
PHASES = ("model", "forward", "backward", "optimizer")


class Request:
    """One stretch of memory: from its request to its release."""

    __slots__ = ("kind", "module", "operator", "phase", "size", "step")

    def __init__(self, size: int, kind: str, phase: str, step: int, operator: str, module: str) -> None:
        self.size = size
        self.kind = kind
        self.phase = phase
        self.step = step
        self.operator = operator
        self.module = module


class AllocationTrace:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        # The number of a request when it is made, minus one minus the number when it is released.
        self.moves: list[int] = []
        # Where the parts of the steps begin: (place in moves, phase, step).
        self.marks: list[tuple[int, str, int]] = []
        self.phase = "model"
        self.step = 0
        self.module = ""
        # Of the second step's forward and backward passes: arithmetic, and kernels that were launched.
        self.flops = 0
        self.kernels = 0
        # Of the model: all of its numbers, and those that learn.
        self.parameters = self.learned = 0
        # Set at the end of the last step: what is dropped on the way out belongs to no step.
        self.is_closed = False
        # Remarks of whoever wrote: what lowers confidence.
        self.doubts: set[str] = set()

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
        """Once more everything since `begin`, which was a whole step: the next one does the same.

        What the step released of the one before it (its batch, its loss) is now released of itself.
        """
        moves = self.moves[begin:]
        marks: dict[int, list[tuple[str, int]]] = {}
        for place, phase, step in self.marks:
            if place >= begin:
                marks.setdefault(place - begin, []).append((phase, step + 1))
        heirs = self._left(moves)
        again: dict[int, int] = {}
        for place, move in enumerate(moves):
            self.marks += [(len(self.moves), *mark) for mark in marks.get(place, ())]
            if move >= 0:
                again[move] = len(self.requests)
                self.moves.append(len(self.requests))
                self.requests.append(self.requests[move])
                continue
            number = -1 - move
            if number in again:
                self.moves.append(-1 - again[number])
            elif waiting := heirs.get(self.requests[number].size):
                self.moves.append(-1 - waiting.pop(0))

    def _left(self, moves: list[int]) -> dict[int, list[int]]:
        """By size, what was requested in these moves and not released."""
        left: dict[int, list[int]] = {}
        released = {-1 - move for move in moves if move < 0}
        for move in moves:
            if move >= 0 and move not in released:
                left.setdefault(self.requests[move].size, []).append(move)
        return left


def play(tape: AllocationTrace, allocator: Allocator) -> Allocator:
    """Do on `allocator` what is on the tape."""
    requests = tape.requests
    live = {}
    for move in tape.moves:
        if move >= 0:
            live[move] = allocator.allocate(requests[move].size)
        else:
            allocator.free(live.pop(-1 - move))
    return allocator
