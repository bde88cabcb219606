"""The grammar of durations: `2h30m`, `90m`, `1:30:00`, `1-02:00:00`, or a plain number in the option's unit.

Every option that takes a duration, and every point in time relative to now, is read here. No `re`:
`gbatch --time` imports this module.
"""

from __future__ import annotations

from gflow.options.job_options import is_digits

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
# Units with their longer spellings; each may have a final s, as in `hours`.
UNITS_S = {
    "s": 1, "sec": 1, "second": 1, "m": MINUTE_S, "min": MINUTE_S, "minute": MINUTE_S,
    "h": HOUR_S, "hr": HOUR_S, "hour": HOUR_S, "d": DAY_S, "day": DAY_S, "w": 7 * DAY_S, "week": 7 * DAY_S,
}  # fmt: skip
# The names of the units that a plain number can have.
PLAIN = {1: "seconds", MINUTE_S: "minutes"}


def parse_duration(text: str, plain_s: int) -> int | None:
    """Seconds, or None if `text` is no duration. `plain_s`: the unit of a plain number, in seconds."""
    text = text.lower()
    if is_digits(text):
        return int(text) * plain_s
    if text[-1:].isalpha():
        return _parse_units(text)
    return _parse_clock(text)


def describe_grammar(plain_s: int) -> str:
    """The spellings of a duration, for hints."""
    return f"write 30 ({PLAIN[plain_s]}), 2h, 1h30m, 5:30 (minutes:seconds), 4:00:00 or 1-02:00:00"


def _parse_units(text: str) -> int | None:
    """`2h30m`: numbers with units, from the largest to the smallest."""
    seconds, before_s = 0, 8 * DAY_S
    while text:
        rest = text.lstrip("0123456789")
        digits = text[: len(text) - len(rest)]
        text = rest.lstrip("abcdefghijklmnopqrstuvwxyz")
        word = rest[: len(rest) - len(text)]
        unit_s = UNITS_S.get(word) or UNITS_S.get(word.removesuffix("s"), 0)
        if not is_digits(digits) or not 0 < unit_s < before_s:
            return None
        seconds += int(digits) * unit_s
        before_s = unit_s
    return seconds


def _parse_clock(text: str) -> int | None:
    """`MM:SS`, `HH:MM:SS`, and Slurm's `D-HH[:MM[:SS]]`."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if (dash and not is_digits(days)) or len(parts) > 3 or not all(is_digits(part) for part in parts):
        return None
    if any(int(part) > 59 for part in parts[1:]):
        return None
    numbers = [int(part) for part in parts]
    numbers = [*numbers, 0, 0][:3] if dash else [0, 0, *numbers][-3:]
    hours, minutes, seconds = numbers
    return int(days or 0) * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds
