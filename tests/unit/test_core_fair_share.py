"""Fair share: which users are over the mean, weighted by use."""

from __future__ import annotations

import pytest

from gflow.core.model import Spec
from gflow.core.resources import shape_of
from gflow.core.state.fair_share import OVER_BAND, UNDER_BAND, FairShare
from gflow.core.state.machine import Machine

HOUR = 3600.0
MACHINE = Machine(cpus=8, memory_mib=1024, allowed=None)


def after(hours: dict[int, float]) -> dict[int, int]:
    """The bands of users who have used one GPU for so many hours, without decay."""
    share = FairShare(0.0, MACHINE)
    one_gpu = shape_of(Spec(command=(), cwd="", gpus=1))
    for uid, used in hours.items():
        share.run(uid, one_gpu, 0.0)
        share.run(uid, one_gpu, used * HOUR, -1)
    return share.bands(hours, 100 * HOUR)


@pytest.mark.parametrize(
    ("hours", "over"),
    [
        # 237 hours: (300² + 200² + 5 · 10²) / 550.
        ({1: 300, 2: 200, 3: 10, 4: 10, 5: 10, 6: 10, 7: 10}, {1}),
        ({1: 300, 2: 290, 3: 10, 4: 10}, {1, 2}),
        ({1: 0, 2: 0, 3: 5}, {3}),
        ({1: 0, 2: 0}, set()),
        ({1: 51, 2: 49}, {1}),
    ],
)
def test_band_of_users_compared_with_weighted_mean(hours: dict[int, float], over: set[int]) -> None:
    bands = after(hours)
    assert {uid for uid, band in bands.items() if band == OVER_BAND} == over
    assert {uid for uid, band in bands.items() if band == UNDER_BAND} == hours.keys() - over


def test_band_of_moderate_user_kept_when_idle_users_return() -> None:
    share = FairShare(0.0, MACHINE)
    one_gpu = shape_of(Spec(command=(), cwd="", gpus=1))
    for uid, used in {1: 280, 2: 170, 3: 40, 4: 40, 5: 40}.items():
        share.run(uid, one_gpu, 0.0)
        share.run(uid, one_gpu, used * HOUR, -1)
    alone = share.bands([1, 2], 300 * HOUR)
    assert share.bands([1, 2, 3, 4, 5], 300 * HOUR)[2] == alone[2] == UNDER_BAND
