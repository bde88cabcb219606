"""What one person may have under way, and root any number of."""

import pytest

from gflow.daemon.api import fairness as module
from gflow.daemon.api.fairness import MOST_KEPT, Fairness
from gflow.errors import TooMany


def test_what_people_bring_to_the_disk_has_a_bound_that_fills_again(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    fairness = Fairness(is_shared=True)
    fairness.keep(1001, MOST_KEPT - 1)
    with pytest.raises(TooMany):
        fairness.keep(1001, 1000)
    fairness.keep(1002, MOST_KEPT)
    fairness.keep(0, 10 * MOST_KEPT)
    now[0] += 1800
    fairness.keep(1001, MOST_KEPT // 2)
    with pytest.raises(TooMany):
        fairness.keep(1001, 1000)
    now[0] += 10 * 3600
    with pytest.raises(TooMany):
        fairness.keep(1001, MOST_KEPT + 1)
    fairness.keep(1001, MOST_KEPT)


def test_a_daemon_of_ones_own_holds_nobody_back():
    Fairness().keep(1001, 10 * MOST_KEPT)
