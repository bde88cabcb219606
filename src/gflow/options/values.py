"""Readers of option values: text (or the typed value of an API call) to the value of a field.

Each reader gets what the caller wrote and the option, and returns the value or refuses
with one sentence. No `re`, no `datetime`: this runs inside every `gbatch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gflow.options.table import Option

NAME_LENGTH = 200
TEN_YEARS_S = 10 * 366 * 86400


def refuse(message: str, hint: str = "") -> NoReturn:
    """Raise the usage error. Imported here: the happy path must not pay for it."""
    from gflow.errors import UsageError

    raise UsageError(message, hint=hint)


def read(option: Option, value: Any) -> Any:
    """The value of one option, from text or from JSON."""
    return READERS[option.kind](value, option)


def read_flag(value: Any, option: Option) -> bool:
    if isinstance(value, bool):
        return value
    refuse(f"--{option.name} takes no value")


def read_count(value: Any, option: Option) -> int:
    """A whole number within the option's bounds."""
    number = _whole(value)
    if number is None:
        refuse(f"--{option.name} takes a whole number, not {_quote(value)}")
    if option.low is not None and number < option.low:
        refuse(f"--{option.name} must be at least {option.low}, not {number}")
    if option.high is not None and number > option.high:
        refuse(f"--{option.name} must be at most {option.high}, not {number}")
    return number


def read_duration(value: Any, option: Option) -> int:
    """Seconds. Text is `MM`, `MM:SS`, `HH:MM:SS` or `D-HH:MM:SS`; a JSON number is seconds."""
    seconds = value if type(value) is int else _duration(value) if isinstance(value, str) else None
    if seconds is None:
        refuse(
            f"--{option.name} does not understand {_quote(value)}",
            "write 30 (minutes), 5:30 (minutes:seconds), 4:00:00 or 1-02:00:00",
        )
    if option.low is not None and seconds < option.low:
        refuse(f"--{option.name} must be longer than zero, not {_quote(value)}")
    if seconds > TEN_YEARS_S:
        refuse(f"--{option.name} must be under ten years, not {_quote(value)}")
    return seconds


def read_text(value: Any, option: Option) -> str:
    if not isinstance(value, str) or "\0" in value:
        refuse(f"--{option.name} takes text, not {_quote(value)}")
    return value


def read_name(value: Any, option: Option) -> str:
    """A name that fits on one line and cannot move the cursor of whoever lists it."""
    if not isinstance(value, str):
        refuse(f"--{option.name} takes text, not {_quote(value)}")
    if not value.strip():
        refuse(f"--{option.name} must not be empty")
    if len(value) > NAME_LENGTH:
        refuse(f"--{option.name} must be at most {NAME_LENGTH} characters, not {len(value)}")
    if not value.isprintable():
        refuse(f"--{option.name} must be printable text on one line, not {_quote(value)}")
    return value


def read_depends(value: Any, option: Option) -> tuple[str, ...]:
    """Job references: `17`, `42_3`, `@`, `@~2`, several with commas."""
    if type(value) is int:
        value = str(value)
    if isinstance(value, (list, tuple)):
        value = ",".join(str(part) for part in value)
    parts = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else ()
    for part in parts or ("",):
        if not is_job_reference(part):
            refuse(
                f"--{option.name} does not understand {_quote(part)}",
                "write a job id (17), @ for your latest job, or @~1 for the one before it",
            )
    return parts


def is_job_reference(text: str) -> bool:
    """Whether `text` is `17`, `42_3`, `@` or `@~2`."""
    if text.startswith("@"):
        back = text[2:] if text.startswith("@~") else None
        return text == "@" or (back is not None and _is_digits(back))
    number, bar, task = text.partition("_")
    return _is_digits(number) and (not bar or _is_digits(task))


def _duration(text: str) -> int | None:
    days, dash, clock = text.strip().rpartition("-")
    if dash and not _is_digits(days):
        return None
    parts = clock.split(":")
    if len(parts) > 3 or not all(_is_digits(part) for part in parts):
        return None
    if dash and len(parts) != 3:
        return None
    if any(int(part) > 59 for part in parts[1:]):
        return None
    numbers = [int(part) for part in parts]
    if len(numbers) == 1:
        numbers = [0, numbers[0], 0]
    elif len(numbers) == 2:
        numbers = [0, *numbers]
    hours, minutes, seconds = numbers
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, str):
        digits = value[1:] if value[:1] in "+-" else value
        if _is_digits(digits):
            return int(value)
    return None


def _is_digits(text: str) -> bool:
    """ASCII digits only, and few enough to be a number somebody meant."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def _quote(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return ascii(text if len(text) <= 60 else text[:57] + "...")


READERS: dict[str, Callable[[Any, Option], Any]] = {
    "flag": read_flag,
    "count": read_count,
    "duration": read_duration,
    "text": read_text,
    "name": read_name,
    "depends": read_depends,
}
