"""How far back: `1h`, `2d`, `today`, a date. The other direction of `options.times`."""

from __future__ import annotations

from datetime import datetime, timedelta

from gflow.errors import UsageError
from gflow.options.times import UNITS_S, parse_time

HINT = "write 1h, 2d, 3w, today, yesterday, 2026-12-24, 2026-12-24T08:00 or seconds since 1970"


def parse_since(text: str, now: datetime | None = None) -> float:
    """Seconds since 1970; days are local days. Raises UsageError for what is no time."""
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
