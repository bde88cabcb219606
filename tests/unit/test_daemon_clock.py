"""The engine's boot clock: the kernel's, with one offset for each boot."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from gflow.daemon.execution.environment import job_variables
from gflow.daemon.loop import timers
from gflow.testing import job

DAY = 86400.0


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = timers._offset
    yield
    timers._offset = before


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Both clocks of the kernel, as the test sets them."""
    shows = {"wall": 1_780_000_000.0, "boot": 500.0}
    monkeypatch.setattr(time, "time", lambda: shows["wall"])
    monkeypatch.setattr(time, "clock_gettime", lambda _: shows["boot"])
    return shows


def test_boot_clock_ignores_changes_of_wall_clock(kernel):
    timers.load_offset(None, "one", 0.0)
    assert timers.now() == (1_780_000_000.0, 1_780_000_000.0)
    kernel["wall"] += DAY
    assert timers.now().boot == 1_780_000_000.0
    assert timers.of_kernel(timers.now().boot) == 500.0


def test_the_next_daemon_of_the_same_boot_has_the_same_offset(kernel):
    kept = timers.load_offset(None, "one", 0.0)
    kernel["wall"] += DAY
    kernel["boot"] += 7.0
    assert timers.load_offset(kept, "one", 0.0) == kept
    assert timers.now().boot == 1_780_000_007.0


def test_after_a_reboot_the_boot_clock_goes_on_by_the_wall_clock(kernel):
    kept = timers.load_offset(None, "one", 0.0)
    kernel |= {"wall": kernel["wall"] + 60.0, "boot": 10.0}
    assert timers.load_offset(kept, "two", 0.0) != kept
    assert timers.now().boot == 1_780_000_060.0


def test_boot_clock_after_reboot_never_goes_back(kernel):
    kept = timers.load_offset(None, "one", 0.0)
    kernel |= {"wall": 0.0, "boot": 10.0}
    timers.load_offset(kept, "two", 1_780_000_000.0)
    assert timers.now().boot == 1_780_000_000.0


def test_job_deadline_variable_is_on_the_boot_clock(kernel):
    timers.load_offset(None, "one", 0.0)
    told = job_variables(job(time_limit_s=60, started_boot=timers.now().boot), None, "")
    assert told["GFLOW_DEADLINE"] == "560.000"


def test_the_record_says_which_boot_it_is_of(kernel):
    assert msgspec.json.decode(timers.load_offset(None, "one", 0.0)) == {
        "boot_id": "one",
        "offset": 1_779_999_500.0,
    }
