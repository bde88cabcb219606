"""Fair share: which users have used more than the quadratic mean."""

from __future__ import annotations

import pytest

from gflow.core.model import Spec
from gflow.core.resources import shape_of
from gflow.core.state.fair_share import OVER_BAND, FairShare
from gflow.core.state.machine import Machine

HOUR = 3600.0


def over(hours: dict[int, float]) -> set[int]:
    """The users over the mean after each has used one GPU for so many hours, without decay."""
    share = FairShare(0.0, Machine(cpus=8, memory_mib=1024, allowed=None))
    one_gpu = shape_of(Spec(command=(), cwd="", gpus=1))
    for uid, used in hours.items():
        share.run(uid, one_gpu, 0.0)
        share.run(uid, one_gpu, used * HOUR, -1)
    return {uid for uid, band in share.bands(hours, 1000 * HOUR).items() if band == OVER_BAND}


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        # The mean is 122 hours: the root of (300² + 120² + 5 · 10²) / 7.
        ({1: 300, 2: 120, 3: 10, 4: 10, 5: 10, 6: 10, 7: 10}, {1}),
        ({1: 300, 2: 290, 3: 10, 4: 10}, {1, 2}),
        ({1: 0, 2: 0, 3: 5}, {3}),
        ({1: 0, 2: 0}, set()),
        ({1: 5}, set()),
        ({1: 51, 2: 49}, {1}),
    ],
)
def test_band_is_over_above_the_quadratic_mean(hours: dict[int, float], expected: set[int]) -> None:
    assert over(hours) == expected


def test_user_of_moderate_use_stays_under_when_users_of_little_use_begin() -> None:
    heavy = {1: 280, 2: 270, 3: 170}
    assert over(heavy) == over({**heavy, 4: 40, 5: 40}) == {1, 2}
