"""What a run did with memory, in order: requests, releases, and where in the step they happened.

A tape is made once and can be played to any number of allocators: without an end, or with the room of a card.
"""

from __future__ import annotations

from gflow.fit.allocator import Allocator

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


class Tape:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        # The number of a request when it is made, minus one minus the number when it is released.
        self.moves: list[int] = []
        # Where the parts of the steps begin: (place in moves, phase, step).
        self.marks: list[tuple[int, str, int]] = []
        self.phase = "model"
        self.step = 0
        self.module = ""
        # Of the model: all of its numbers, and those that learn.
        self.parameters = self.learned = 0
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
        self.moves.append(-1 - number)


def play(tape: Tape, allocator: Allocator) -> Allocator:
    """Do on `allocator` what is on the tape."""
    requests = tape.requests
    live = {}
    for move in tape.moves:
        if move >= 0:
            live[move] = allocator.allocate(requests[move].size)
        else:
            allocator.free(live.pop(-1 - move))
    return allocator
