"""Which GPUs of the catalogue have the room, and how large a batch may become on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gflow.errors import Refused
from gflow.fit.answer import Estimate, answer, fits
from gflow.fit.catalogue import Gpu

if TYPE_CHECKING:
    from gflow.fit.tape import Tape

# A run that needs more of a card than this is tight: another process, or longer data, and it fails.
TIGHT = 0.95
MOST_RUNS = 12
# A formula may be off by half.
ROUGH = 1.5


class Verdict(msgspec.Struct, frozen=True):
    gpu: str
    # yes, tight or no
    fits: str
    # Of the card's memory, as a part of one.
    share: float
    hourly: float | None


def verdicts(found: Estimate, tape: Tape | None, gpus: dict[str, Gpu]) -> list[Verdict]:
    made = []
    for gpu in gpus.values():
        state = _state(found, tape, gpu)
        price = gpu.cheapest
        share = (found.peak_reserved_bytes + gpu.card.context) / (gpu.room + gpu.card.context)
        made.append(Verdict(gpu.name, state, round(share, 3), price.price if price else None))
    return made


def _state(found: Estimate, tape: Tape | None, gpu: Gpu) -> str:
    needed = found.peak_reserved_bytes
    if tape is None:
        needed = int(needed * ROUGH)
        if needed <= gpu.room:
            return "yes"
        return "tight" if found.peak_reserved_bytes <= gpu.room else "no"
    if needed <= TIGHT * gpu.room:
        return "yes"
    if needed <= gpu.room:
        return "tight"
    # Reserved beyond the card's room is not yet the end: free memory goes back when it must.
    return "tight" if found.peak_allocated_bytes <= gpu.room and fits(tape, gpu.room) else "no"


def largest_batch(record: Callable[[int], Tape], room: int) -> int:
    """The largest batch whose run gets through in `room` bytes; 0 if none does.

    Memory grows about evenly with the batch, so a line through two runs tells where to look.
    """
    runs = 0

    def needed(batch: int) -> tuple[bool, int]:
        nonlocal runs
        runs += 1
        tape = record(batch)
        return fits(tape, room), answer(tape).peak_allocated_bytes

    is_in, base = needed(1)
    if not is_in:
        return 0
    below, above = 1, 0
    _, second = needed(2)
    slope = max(1, second - base)
    guess = max(2, 1 + (room - base) // slope)
    while above - below != 1 and runs < MOST_RUNS:
        guess = max(below + 1, min(guess, above - 1 if above else guess))
        try:
            is_in, top = needed(guess)
        except Refused:
            is_in, top = False, room
        if is_in:
            below = guess
        else:
            above = guess
        slope = max(1, (top - base) // max(1, guess - 1)) if is_in else slope
        step = 1 + (room - base) // slope
        guess = (below + above) // 2 if above else max(below + 1, step, below + max(1, below // 50))
        if above and above - below > 4 and below < step < above:
            guess = step
    return below
