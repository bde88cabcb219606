"""Parse points in time, in the local time zone: future ones (`--begin`) and past ones (`--since`)."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from datetime import time as clock_time

from gflow.errors import UsageError

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_time(text: str, now: datetime | None = None) -> float | None:
    """Parse a point in time; seconds since 1970, or None if `text` is invalid.

    `20:00` is the next occurrence, today or tomorrow. `now+2h` and `+30` (minutes) are relative. A bare date
    is its midnight. An offset or `Z` in the text takes precedence over the local zone.
    """
    moment = now or datetime.now().astimezone()
    text = text.strip()
    if text == "now":
        return moment.timestamp()
    if text.startswith(("now+", "+")):
        return _after(text.removeprefix("now")[1:], moment)
    if text[1:2] == ":":  # 8:00
        text = "0" + text
    return _clock(text, moment) if text[2:3] == ":" else _calendar(text)


def _after(text: str, moment: datetime) -> float | None:
    unit = text[-1:] if text[-1:] in UNITS_S else "m"
    digits = text.removesuffix(unit)
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 9:
        return None
    return moment.timestamp() + int(digits) * UNITS_S[unit]


def _clock(text: str, moment: datetime) -> float | None:
    try:
        wanted = clock_time.fromisoformat(text)
    except ValueError:
        return None
    today = moment.astimezone().date()
    for days in (-1, 0, 1, 2):  # an offset in the text may shift the day
        for fold in (0, 1):  # at the end of summer time an hour occurs twice
            # Through naive local time, so that a day with 23 or 25 hours is still that day.
            at = datetime.combine(today + timedelta(days=days), wanted.replace(fold=fold)).timestamp()
            if at > moment.timestamp():
                return at
    return None


def _calendar(text: str) -> float | None:
    try:
        if len(text) == 10:
            return datetime.combine(date.fromisoformat(text), clock_time()).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


HINT = "write 1h, 2d, 3w, today, yesterday, 2026-12-24, 2026-12-24T08:00 or seconds since 1970"


def parse_since(text: str, now: datetime | None = None) -> float:
    """Parse a point in the past; seconds since 1970. Days are local days. Raises UsageError."""
    found = _parse(text.strip().lower(), now or datetime.now().astimezone())
    if found is None or found < 0:
        raise UsageError(f"--since does not understand {text[:60]!a}", hint=HINT)
    return found


def _parse(text: str, now: datetime) -> float | None:
    days = {"today": 0, "yesterday": 1}.get(text)
    if days is not None:
        # Through naive local time, so that a day with 23 or 25 hours is still that day.
        day = now.astimezone().date() - timedelta(days=days)
        return datetime(day.year, day.month, day.day).timestamp()
    if text.isascii() and text.isdecimal():
        return float(text) if len(text) <= 12 else None
    number, unit = text[:-1], text[-1:]
    if unit in UNITS_S and number.isascii() and number.isdecimal() and len(number) <= 9:
        return max(0.0, now.timestamp() - int(number) * UNITS_S[unit])
    if text[2:3] == ":" or text.startswith(("now", "+")):
        return None
    return parse_time(text.upper(), now)
