"""Closing in on the largest batch that fits, beginning where the prediction is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# A batch that is this much smaller than the largest is good enough.
CLOSE = 0.02
# How far below a batch that was too large the next trial is.
BELOW = 0.02
MOST_TRIALS = 8


class Trial(NamedTuple):
    """A batch that was tried. `peak`: bytes it took from the card; None: it ran out of memory."""

    batch: int
    peak: int | None


def search(
    predicted: int,
    room: int,
    slope: int,
    attempt: Callable[[int], int | None],
    multiple: int = 1,
) -> tuple[int, list[Trial]]:
    """Close in on the largest batch, beginning where the prediction is. Pure but for `attempt`.

    `slope`: bytes that a sample more takes, as predicted. Returns 0 if not even the smallest fits.
    """
    trials: list[Trial] = []
    good, bad = 0, 0
    guess = max(multiple, predicted - predicted % multiple)
    while guess and len(trials) < MOST_TRIALS:
        peak = attempt(guess)
        trials.append(Trial(guess, peak))
        if peak is None:
            bad = guess
            # Just below; then further each time, so that a prediction that is far off ends soon, too.
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
