from datetime import UTC, datetime, timedelta, timezone

import pytest

from gflow.errors import UsageError
from gflow.options.times import parse_since

NOW = datetime(2026, 3, 29, 14, 30).astimezone()
AT = NOW.timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", AT - 90),
        ("30m", AT - 1800),
        ("1h", AT - 3600),
        ("2d", AT - 2 * 86400),
        ("3w", AT - 21 * 86400),
        (" 1H ", AT - 3600),
        ("today", datetime(2026, 3, 29).timestamp()),
        ("Yesterday", datetime(2026, 3, 28).timestamp()),
        ("1700000000", 1700000000.0),
        ("0", 0.0),
        ("2026-03-01", datetime(2026, 3, 1).timestamp()),
        ("2026-03-01T08:15", datetime(2026, 3, 1, 8, 15).timestamp()),
        ("2026-03-01 08:15:30", datetime(2026, 3, 1, 8, 15, 30).timestamp()),
        ("2026-03-01T08:15:00Z", datetime(2026, 3, 1, 8, 15, tzinfo=UTC).timestamp()),
        ("2026-03-01t08:15+02:00", datetime(2026, 3, 1, 6, 15, tzinfo=UTC).timestamp()),
        ("999999w", 0.0),
        ("1d12h", AT - 36 * 3600),
        ("10 minutes ago", AT - 600),
        ("2 hours 30 minutes ago", AT - 9000),
        ("2h ago", AT - 7200),
        ("14:00", datetime(2026, 3, 29, 14).timestamp()),
        ("9:05:10", datetime(2026, 3, 29, 9, 5, 10).timestamp()),
        ("14:30", AT),
        ("20:00", datetime(2026, 3, 28, 20).timestamp()),  # the latest one: yesterday
    ],
)
def test_since_is_parsed(text, seconds):
    assert parse_since(text, NOW) == seconds


def test_the_day_begins_where_the_caller_is(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        now = datetime(
            2026, 3, 29, 1, 0, tzinfo=timezone(timedelta(hours=9))
        )  # it is still yesterday in London
        assert parse_since("today", now) == now.timestamp() - 3600
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "1y",
        "-1h",
        "h",
        "1.5h",
        "now",
        "+30",
        "25:00",
        "ago",
        "10 minutes hence",
        "1-02:00:00",
        "2026-13-01",
        "tomorrow",
        "1" * 13,
        "\u0661h",
    ],
)
def test_invalid_since_is_refused_with_examples(text):
    with pytest.raises(UsageError, match="--since does not understand") as caught:
        parse_since(text, NOW)
    assert "yesterday" in caught.value.hint
