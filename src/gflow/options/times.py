"""Parse points in time, in the local time zone: future ones (`--begin`) and past ones (`--since`)."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from datetime import time as clock_time

from gflow.errors import UsageError
from gflow.options.durations import MINUTE_S, parse_duration

# Longer spans are typing errors: `now+20261224`.
MOST_S = 100 * 366 * 86400
# Words of Slurm: times whose next occurrence is meant.
DAY_WORDS = {"midnight": "00:00", "tomorrow": "00:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00"}


def parse_time(text: str, now: datetime | None = None) -> float | None:
    """Parse a point in time; seconds since 1970, or None if `text` is invalid.

    `20:00` is the next occurrence, today or tomorrow. `now+2h`, `2h` and `+30` (minutes) are relative. A bare
    date is its midnight. An offset or `Z` in the text takes precedence over the local zone.
    """
    moment = now or datetime.now().astimezone()
    text = text.strip()
    if text == "now":
        return moment.timestamp()
    if text.startswith(("now+", "+")):
        return _after(text.removeprefix("now")[1:], moment)
    text = DAY_WORDS.get(text, text)
    if _is_clock(text):
        return _clock(text, moment, (-1, 0, 1, 2), is_past=False)  # an offset in the text may shift the day
    return _calendar(text) if len(text) >= 8 and text[:4].isdecimal() else _after_plain(text, moment)


def _after(text: str, moment: datetime) -> float | None:
    span_s = parse_duration(text, MINUTE_S)
    return None if span_s is None or span_s > MOST_S else moment.timestamp() + span_s


def _after_plain(text: str, moment: datetime) -> float | None:
    """`2h` or `10`, without `now+`. With a dash it would be read as days, and is probably a date."""
    return None if "-" in text else _after(text, moment)


def _is_clock(text: str) -> bool:
    return text[2:3] == ":" or text[1:2] == ":"


def _clock(text: str, moment: datetime, days: tuple[int, ...], *, is_past: bool) -> float | None:
    """The first time after `moment`, or at or before it, at which a clock shows `text`."""
    try:
        wanted = clock_time.fromisoformat("0" + text if text[1:2] == ":" else text)
    except ValueError:
        return None
    today = moment.astimezone().date()
    for day in days:
        for fold in (1, 0) if is_past else (0, 1):  # at the end of summer time an hour occurs twice
            # Through naive local time, so that a day with 23 or 25 hours is still that day.
            at = datetime.combine(today + timedelta(days=day), wanted.replace(fold=fold)).timestamp()
            if (at <= moment.timestamp()) == is_past:
                return at
    return None


def _calendar(text: str) -> float | None:
    try:
        if len(text) == 10:
            return datetime.combine(date.fromisoformat(text), clock_time()).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


HINT = (
    "write 2h, 1d12h, 10 minutes ago, 14:00, today, yesterday, 2026-12-24, 2026-12-24T08:00 or seconds "
    "since 1970"
)


def parse_since(text: str, now: datetime | None = None) -> float:
    """Parse a point in the past; seconds since 1970. Days are local days. Raises UsageError."""
    found = _parse_past(text.strip().lower(), now or datetime.now().astimezone())
    if found is None or found < 0:
        raise UsageError(f"--since does not understand {text[:60]!a}", hint=HINT)
    return found


def _parse_past(text: str, now: datetime) -> float | None:
    days = {"today": 0, "yesterday": 1}.get(text)
    if days is not None:
        # Through naive local time, so that a day with 23 or 25 hours is still that day.
        day = now.astimezone().date() - timedelta(days=days)
        return datetime(day.year, day.month, day.day).timestamp()
    if text.isascii() and text.isdecimal():
        return float(text) if len(text) <= 12 else None
    if _is_clock(text):
        return _clock(text.upper(), now, (1, 0, -1, -2), is_past=True)
    if text[:4].isdecimal() and len(text) >= 8 and text[4:5] in "-0123456789":
        return _calendar(text.upper())
    span_s = parse_duration(text.removesuffix("ago").replace(" ", ""), MINUTE_S)
    return None if "-" in text or span_s is None else max(0.0, now.timestamp() - span_s)
