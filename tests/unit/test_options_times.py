"""Points in time as people write them, in a zone with summer time."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.options.times import parse_time

# Berlin, written so that no file of time zones is needed.
ZONE = "CET-1CEST,M3.5.0,M10.5.0/3"
NOW = datetime(2026, 6, 15, 12, 0)


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", ZONE)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_zone_is_what_the_tests_think():
    assert NOW.timestamp() == datetime(2026, 6, 15, 10, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 0),
        ("now+30", 30 * 60),
        ("+30", 30 * 60),
        ("now+0", 0),
        ("now+90s", 90),
        ("now+5m", 300),
        ("now+2h", 7200),
        ("+2d", 2 * 86400),
        ("now+1w", 7 * 86400),
        (" now+2h ", 7200),
        ("now+2h30m", 9000),
        ("now+1hour", 3600),
        ("now+1:30:00", 5400),
        ("now+1-02:00:00", 93600),
        ("2h", 7200),
        ("10", 600),
    ],
)
def test_relative_times(text, seconds):
    assert parse_time(text, NOW) == NOW.timestamp() + seconds


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("20:00", (2026, 6, 15, 20)),
        ("20:00:30", (2026, 6, 15, 20, 0, 30)),
        ("12:01", (2026, 6, 15, 12, 1)),
        ("12:00", (2026, 6, 16, 12)),  # not now: the next time it is noon
        ("08:00", (2026, 6, 16, 8)),
        ("00:00", (2026, 6, 16)),
        ("2026-12-24", (2026, 12, 24)),
        ("2026-12-24T08:00", (2026, 12, 24, 8)),
        ("2026-12-24 08:00", (2026, 12, 24, 8)),
        ("2026-12-24T08:00:30", (2026, 12, 24, 8, 0, 30)),
        ("2020-01-01", (2020, 1, 1)),
    ],
)
def test_local_time(text, when):
    assert parse_time(text, NOW) == datetime(*when).timestamp()


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-12-24T08:00Z", (2026, 12, 24, 8)),
        ("2026-12-24T08:00+02:00", (2026, 12, 24, 6)),
        ("2026-12-24T08:00-05:00", (2026, 12, 24, 13)),
        ("20:00Z", (2026, 6, 15, 20)),
        ("20:00+05:00", (2026, 6, 15, 15)),
        ("20:00-05:00", (2026, 6, 16, 1)),
        ("10:30+14:00", (2026, 6, 15, 20, 30)),
        ("01:00+14:00", (2026, 6, 15, 11)),
        ("00:00+14:00", (2026, 6, 16, 10)),
    ],
)
def test_an_offset_in_the_text_wins(text, utc):
    assert parse_time(text, NOW) == datetime(*utc, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("now", "text", "when"),
    [
        ((2026, 3, 28, 23), "08:00", (2026, 3, 29, 8)),  # the night has an hour less
        ((2026, 10, 24, 23), "08:00", (2026, 10, 25, 8)),  # and one more
        ((2026, 12, 31, 23), "08:00", (2027, 1, 1, 8)),
        ((2028, 2, 28, 23), "08:00", (2028, 2, 29, 8)),
    ],
    ids=str,
)
def test_tomorrow_is_the_next_day_whatever_its_length(now, text, when):
    assert parse_time(text, datetime(*now)) == datetime(*when).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "now+",
        "+",
        "now-1h",
        "now+1.5h",
        "now+1y",
        "now+h",
        "now+ 5",
        "now+5 h",
        "now+-5",
        "now+\u0663",
        "now+" + "9" * 10,
        "25:00",
        "24:00",
        "20:60",
        "20:",
        ":30",
        "2026-13-01",
        "2026-02-30",
        "2026-12",
        "2026-12-24T25:00",
        "24.12.2026",
        "12/24",
        "0000-01-01",
        "10000-01-01",
        "\x00",
    ],
)
def test_invalid_times(text):
    assert parse_time(text, NOW) is None


@given(st.text(alphabet="now+0123456789:-TZ .hdms", max_size=20))
def test_any_text_is_a_time_or_none(text):
    found = parse_time(text, NOW)
    assert found is None or isinstance(found, float)


def test_time_without_now_uses_the_clock():
    assert abs(parse_time("now") - time.time()) < 60
