"""Which GPUs of the catalogue a run fits on, and the largest batch that fits on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gflow.ml.fit.catalogue import Gpu
from gflow.ml.fit.recipe import MOST_BATCH
from gflow.ml.fit.report import Estimate, evaluate, fits

if TYPE_CHECKING:
    from gflow.ml.fit.cuda.allocation_trace import AllocationTrace

# Above this fraction of the GPU's memory a fit is tight: another process or longer input makes the run fail.
TIGHT = 0.95
# Safety factor for formula estimates, which may be off by half.
ROUGH = 1.5


class Verdict(msgspec.Struct, frozen=True):
    gpu: str
    # yes, tight or no
    fits: str
    # Fraction of the GPU's memory.
    share: float
    hourly: float | None
    # Whether the price was compared with its source.
    is_compared: bool = True


def verdicts(found: Estimate, trace: AllocationTrace | None, gpus: dict[str, Gpu]) -> list[Verdict]:
    made = []
    for gpu in gpus.values():
        state = _state(found, trace, gpu)
        price = gpu.hourly
        share = (found.peak_reserved_bytes + gpu.card.context) / (gpu.room + gpu.card.context)
        hourly, is_compared = (price.price, price.is_compared) if price else (None, True)
        made.append(Verdict(gpu.name, state, round(share, 3), hourly, is_compared))
    return made


def _state(found: Estimate, trace: AllocationTrace | None, gpu: Gpu) -> str:
    needed = found.peak_reserved_bytes
    if trace is None:
        needed = int(needed * ROUGH)
        if needed <= gpu.room:
            return "yes"
        return "tight" if found.peak_reserved_bytes <= gpu.room else "no"
    if needed <= TIGHT * gpu.room:
        return "yes"
    if needed <= gpu.room:
        return "tight"
    # More reserved than there is may still fit: the allocator returns free segments when it has to.
    return "tight" if found.peak_allocated_bytes <= gpu.room and fits(trace, gpu.room) else "no"


def largest_batch(record: Callable[[int], AllocationTrace], room: int, guess: int = 0) -> int:
    """Return the largest batch whose run fits into `room` bytes; 0 if none does.

    Memory grows about linearly with the batch, so without a `guess` the search starts at the extrapolation of
    two runs. It proceeds in doubling steps, then by bisection.
    """
    if guess < 2:
        one, two = record(1), record(2)
        if not fits(one, room):
            return 0
        base = evaluate(one).peak_allocated_bytes
        slope = max(1, evaluate(two).peak_allocated_bytes - base)
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
