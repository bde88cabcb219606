"""Which GPUs of the catalogue have the room, and how large a batch may become on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gflow.ml.fit.catalogue import Gpu
from gflow.ml.fit.recipe import MOST_BATCH
from gflow.ml.fit.report import Estimate, answer, fits

if TYPE_CHECKING:
    from gflow.ml.fit.cuda.allocation_trace import AllocationTrace

# A run that needs more of a card than this is tight: another process, or longer data, and it fails.
TIGHT = 0.95
# A formula may be off by half.
ROUGH = 1.5


class Verdict(msgspec.Struct, frozen=True):
    gpu: str
    # yes, tight or no
    fits: str
    # Of the card's memory, as a part of one.
    share: float
    hourly: float | None
    # Whether somebody looked the price up.
    is_compared: bool = True


def verdicts(found: Estimate, tape: AllocationTrace | None, gpus: dict[str, Gpu]) -> list[Verdict]:
    made = []
    for gpu in gpus.values():
        state = _state(found, tape, gpu)
        price = gpu.cheapest
        share = (found.peak_reserved_bytes + gpu.card.context) / (gpu.room + gpu.card.context)
        hourly, is_compared = (price.price, price.is_compared) if price else (None, True)
        made.append(Verdict(gpu.name, state, round(share, 3), hourly, is_compared))
    return made


def _state(found: Estimate, tape: AllocationTrace | None, gpu: Gpu) -> str:
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


def largest_batch(record: Callable[[int], AllocationTrace], room: int, guess: int = 0) -> int:
    """The largest batch whose run gets through in `room` bytes; 0 if none does.

    Memory grows about evenly with the batch, so a line through two runs tells where to look, unless somebody
    has a better `guess`; from there the answer is closed in on, in steps that double.
    """
    if guess < 2:
        one, two = record(1), record(2)
        if not fits(one, room):
            return 0
        base = answer(one).peak_allocated_bytes
        slope = max(1, answer(two).peak_allocated_bytes - base)
        guess = max(2, 1 + (room - base) // slope)
    guess = min(MOST_BATCH, guess)
    below, above, step = 1, MOST_BATCH + 1, 1
    while above - below > 1:
        if fits(record(guess), room):
            below = guess
            guess = min(below + step, (below + above) // 2 if above <= MOST_BATCH else MOST_BATCH)
        else:
            above = guess
            guess = max(above - step, (below + above) // 2 if below > 1 else 2)
        guess = min(max(guess, below + 1), above - 1)
        step *= 2
    return below if below > 1 or fits(record(1), room) else 0
