import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.text.table import clock, fine


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "00:00:00"),
        (0.999, "00:00:00"),
        (59, "00:00:59"),
        (60, "00:01:00"),
        (330, "00:05:30"),
        (3600, "01:00:00"),
        (86399.9, "23:59:59"),
        (86400, "1-00:00:00"),
        (93600, "1-02:00:00"),
        (100 * 86400 + 1, "100-00:00:01"),
        (-5, "00:00:00"),
    ],
)
def test_clock_format(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.00 s"), (0.25, "0.25 s"), (59.2, "59.20 s"), (60, "00:01:00")]
)
def test_fine_format(seconds, text):
    assert fine(seconds) == text


@given(st.floats(0, 1e10))
def test_a_clock_counts_whole_seconds(seconds):
    days, _, text = clock(seconds).rpartition("-")
    hours, minutes, rest = map(int, text.split(":"))
    assert hours < 24 and minutes < 60 and rest < 60
    assert int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest == int(seconds)
