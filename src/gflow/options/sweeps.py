"""Parse parameters of a sweep: `lr=0.1,0.01`, `seed=1:5`, `x=0:1:0.25`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from itertools import islice
from numbers import Number
from typing import Any

from gflow.errors import UsageError
from gflow.options.job_options import Option

MOST = 10_000
HINT = "write lr=0.1,0.01 or seed=1:5 or x=0:1:0.25"
BRACKETS = (("[", "]"), ("(", ")"))
Parameter = tuple[str, tuple[str, ...]]


def parameters(value: Any, option: Option) -> tuple[Parameter, ...]:
    """Parse text `lr=0.1,0.01`, or JSON: {"lr": [0.1, 0.01]}, a list of such texts or of [name, values]."""
    if isinstance(value, dict):
        return tuple(_check(name, values, option) for name, values in value.items())
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"--{option.name} does not understand {value!a:.60}", hint=HINT)
    return tuple(_parameter(part, option) for part in value)


def named_parameters(given: Mapping[str, Any], option: Option) -> tuple[Parameter, ...]:
    """Parameters by name. Text is read as on a command line; each value of an iterable stays as it is."""
    return tuple(_check(name, _spelled(name, values, option), option) for name, values in given.items())


def _spelled(name: str, values: Any, option: Option) -> list[str]:
    if isinstance(values, str):
        return _values(values, option)
    if not isinstance(values, Iterable) or _is_scalar(values):
        return [_spell(name, values, option)]
    if isinstance(values, (Mapping, bytes)):
        raise _not_a_value(name, values, option)
    found = [_spell(name, value, option) for value in islice(values, MOST + 1)]
    if len(found) > MOST:
        raise UsageError(f"--{option.name} has more than {MOST:,} values for {name}")
    return found


def _spell(name: str, value: Any, option: Option) -> str:
    """One value as text. Refuses values without a usual spelling, such as lists."""
    if _is_scalar(value):
        value = value.item()  # of NumPy and PyTorch
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if value is None or isinstance(value, (str, Number)):
        return str(value)
    raise _not_a_value(name, value, option)


def _is_scalar(value: Any) -> bool:
    return getattr(value, "shape", None) == () and hasattr(value, "item")


def _not_a_value(name: str, value: Any, option: Option) -> UsageError:
    kind = type(value).__name__
    return UsageError(
        f"--{option.name} takes numbers and texts for {name}, not {value!a:.60} ({kind})",
        hint=f"give texts: {{{name!r}: ['1,2', '3']}}",
    )


def _parameter(part: Any, option: Option) -> Parameter:
    if isinstance(part, (list, tuple)) and len(part) == 2:
        return _check(part[0], part[1], option)
    name, equals, text = part.partition("=") if isinstance(part, str) else ("", "", "")
    if not equals:
        raise UsageError(f"--{option.name} does not understand {part!a:.60}", hint=HINT)
    return _check(name.strip(), _values(text, option), option)


def _values(text: str, option: Option) -> list[str]:
    if "," not in text and ":" in text and (numbers := _numbers(text.split(":"))):
        return _range(text, numbers, option)
    if "," in text and (text[:1], text[-1:]) in BRACKETS:
        raise UsageError(
            f"--{option.name} takes a list without brackets, not {text!a:.60}",
            hint=f"write {text[1:-1]:.60}; --param-file takes values with commas",
        )
    return [value.strip() for value in text.split(",")]


def _numbers(parts: list[str]) -> list[Decimal]:
    """The numbers of `start:stop[:step]`; empty: another kind of value, such as an address."""
    try:
        numbers = [Decimal(part) for part in parts]
    except InvalidOperation:
        return []
    plain = all(number.is_finite() and abs(number.adjusted()) < 30 for number in numbers)
    return numbers if len(numbers) in (2, 3) and plain else []


def _range(text: str, numbers: list[Decimal], option: Option) -> list[str]:
    """Every number from start to stop, inclusive. Decimal arithmetic keeps 0.1 exact."""
    start, stop, step = (*numbers, Decimal(1))[:3]
    if step <= 0 or stop < start:
        raise UsageError(
            f"--{option.name} has no values in the range {text!a:.60}", hint="write start:stop:step"
        )
    count = int((stop - start) / step) + 1 if (stop - start) / step < MOST else MOST + 1
    if count > MOST:
        raise UsageError(f"--{option.name} has more than {MOST:,} values in the range {text!a:.60}")
    if count == 1 and start != stop and len(numbers) == 2:
        raise UsageError(
            f"--{option.name} has only the value {numbers[0]} in the range {text!a:.60}",
            hint="the step is 1: write start:stop:step, or a list, as in lr=1e-5,1e-4,1e-3",
        )
    return [format((start + index * step).normalize(), "f") for index in range(count)]


def note_range(params: tuple[Parameter, ...]) -> str:
    """A note about a single value that looks like a range in another syntax (1-10, 16..64); else empty."""
    for name, values in params:
        for mark in ("-", ".."):
            first, found, last = values[0].partition(mark)
            if len(values) == 1 and found and first.isdecimal() and last.isdecimal():
                return f"{name} has one value, {values[0]}; the range is --param {name}={first}:{last}"
    return ""


def _check(name: Any, values: Any, option: Option) -> Parameter:
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier()) or len(name) > 64:
        raise UsageError(
            f"--{option.name} takes a name, not {name!a:.60}",
            hint="letters, digits and _, as in lr or batch_size",
        )
    if not isinstance(values, (list, tuple)):
        values = [values]
    texts = tuple(
        str(value) for value in values if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    )
    if not texts or len(texts) < len(values) or not all(texts):
        raise UsageError(f"--{option.name} has an empty value for {name}", hint=HINT)
    if any("\0" in text for text in texts):
        raise UsageError(f"--{option.name} cannot hold a NUL character")
    return name, texts
