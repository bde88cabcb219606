"""Search for the largest batch that fits, starting at the predicted one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Stop when the batch is within this fraction of the largest.
CLOSE = 0.02
# Relative step down after a batch that did not fit; it doubles with each trial.
BELOW = 0.02
MOST_TRIALS = 8


class Trial(NamedTuple):
    """One trial. `peak`: bytes reserved on the GPU; None: out of memory."""

    batch: int
    peak: int | None


def search(
    predicted: int,
    room: int,
    slope: int,
    attempt: Callable[[int], int | None],
    multiple: int = 1,
) -> tuple[int, list[Trial]]:
    """Find the largest batch that fits into `room` bytes, starting at `predicted`. Pure except `attempt`.

    `slope`: predicted bytes per additional sample. The batch is 0 if not even the smallest fits.
    """
    trials: list[Trial] = []
    good, bad = 0, 0
    guess = max(multiple, predicted - predicted % multiple)
    while guess and len(trials) < MOST_TRIALS:
        peak = attempt(guess)
        trials.append(Trial(guess, peak))
        if peak is None:
            bad = guess
            # Step down, further each time, so that a bad prediction also needs few trials.
            guess -= max(multiple, int(guess * BELOW * (1 << (len(trials) - 1))))
            guess = max(guess, good)
        else:
            good = guess
            guess += max(0, room - peak) // max(1, slope)
            if bad:
                guess = min(guess, bad - multiple)
        guess -= guess % multiple
        if not guess and good == 0 and bad > multiple:
            guess = multiple
        if bad and good >= bad * (1 - CLOSE) - multiple:
            break
        if guess <= good * (1 + CLOSE) or guess in (trial.batch for trial in trials):
            break
    return good, trials
