"""Readers of option values: convert text, or the JSON value of an API call, to the value of a field.

A reader gets the input and the option. It returns the value or raises UsageError. No `re` and no `datetime`:
every `gbatch` imports this module.
"""

from __future__ import annotations

from gflow.options.job_options import NAME_LENGTH, SIGNALS, is_digits, quote, refuse

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gflow.options.job_options import Option

TEN_YEARS_S = 10 * 366 * 86400
MOST_MIB = 1 << 30
# The last time that can be shown in every time zone: the end of 9998.
LAST_TIME = 253_370_764_800
UNITS = {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
# Slurm's words for no time limit.
UNLIMITED = ("UNLIMITED", "INFINITE", "unlimited", "infinite")
ARRAY_TASKS = 100_000
ARRAY_LAST = 1_000_000
ARRAY_OVERLAP = 100
MOST_PARENTS = 10_000


def read(option: Option, value: Any) -> Any:
    """The value of one option, from text or from JSON."""
    return READERS[option.kind](value, option)


def read_flag(value: Any, option: Option) -> bool:
    if not isinstance(value, bool):
        refuse(f"--{option.name} takes no value")
    return value


def read_count(value: Any, option: Option) -> int:
    """A whole number within the option's bounds."""
    number = _integer(value)
    if number is None:
        refuse(f"--{option.name} takes a whole number, not {quote(value)}", _sharing_hint(value, option))
    if option.low is not None and number < option.low:
        refuse(f"--{option.name} must be at least {option.low}, not {number}")
    if option.high is not None and number > option.high:
        refuse(f"--{option.name} must be at most {option.high}, not {number}")
    return number


def _sharing_hint(value: Any, option: Option) -> str:
    """How to ask for a part of a GPU, for `--gpus 0.5`."""
    is_part = option.name == "gpus" and str(value).replace(".", "", 1).isdecimal()
    return "to share a GPU with other jobs: --gpus 1 --shared --gpu-memory 20G" if is_part else ""


def read_duration(value: Any, option: Option, plain_s: int = 60) -> int:
    """Seconds. A JSON number is seconds; a plain number in text has the unit `plain_s`."""
    if option.field == "time_limit_s" and value in UNLIMITED:
        return 0
    from gflow.options.durations import describe_grammar, parse_duration  # only for options of this kind

    seconds = (
        value
        if type(value) is int
        else parse_duration(value.strip(), plain_s)
        if isinstance(value, str)
        else None
    )
    if seconds is None:
        refuse(f"--{option.name} does not understand {quote(value)}", describe_grammar(plain_s))
    if option.low is not None and seconds < option.low:
        rule = "must be longer than zero" if option.low else "cannot be negative"
        refuse(f"--{option.name} {rule}, not {quote(value)}")
    if seconds > TEN_YEARS_S:
        refuse(f"--{option.name} must be under ten years, not {quote(value)}")
    return seconds


def read_extension(value: str, option: Option) -> int:
    """`+2h`, `+30` (minutes), `+1:00:00`: seconds to add."""
    if not (seconds := read_duration(value.removeprefix("+"), option)):
        refuse(f"--{option.name} must be longer than zero, not {quote(value)}")
    return seconds


def read_change(value: Any, option: Option) -> Any:
    """A duration, or an extension (`+2h`), which stays text: the daemon adds it to the limit of the job."""
    if isinstance(value, str) and value.startswith("+"):
        read_extension(value, option)
        return value
    return read_duration(value, option)


def read_seconds(value: Any, option: Option) -> int:
    """A duration where a plain number is seconds."""
    return read_duration(value, option, plain_s=1)


def read_size(value: Any, option: Option) -> int:
    """MiB. Text is `512M`, `1.5G`, `2T`; a bare number is MB."""
    mib = value if type(value) is int else _size(value) if isinstance(value, str) else None
    if mib is None:
        refuse(f"--{option.name} does not understand {quote(value)}", "write 16G, 1.5G or 512M")
    if mib < 1:
        refuse(f"--{option.name} must be at least 1M, not {quote(value)}")
    if mib > MOST_MIB:
        refuse(f"--{option.name} must be under a pebibyte, not {quote(value)}")
    return mib


def read_need(value: Any, option: Option) -> int | str:
    """A size in MiB, or `auto`, which the daemon replaces by a size from its history."""
    return "auto" if value == "auto" else read_size(value, option)


def read_prediction(value: Any, option: Option) -> int | str:
    """A file with a prediction, which the client reads; or MiB per GPU, from programs."""
    return read_path(value, option) if isinstance(value, str) else read_size(value, option)


def read_array(value: Any, option: Option) -> str:
    """Tasks as `1-10`, `0-90:10`, `1,3,5-7`, without duplicates; a cap such as `%4` stays at the end."""
    if type(value) is int:
        value = str(value)
    spans, cap = _array(value) if isinstance(value, str) else (None, "")
    if not spans or (cap and not int(cap)):
        refuse(
            f"--{option.name} does not understand {quote(value)}",
            "write 1-10, 0-90:10, or 1,3,5-7; %4 runs at most 4 at once",
        )
    if sum((last - first) // step + 1 for first, last, step in spans) > ARRAY_TASKS:
        refuse(f"--{option.name} may have at most {ARRAY_TASKS:,} tasks")
    if spans[-1][1] > ARRAY_LAST or max(last for _, last, _ in spans) > ARRAY_LAST:
        refuse(f"--{option.name}: task numbers may be at most {ARRAY_LAST:,}")
    text = ",".join(_span_text(*span) for span in _disjoint(spans, option))
    return text + ("%" + cap if cap else "")


def read_time(value: Any, option: Option) -> float:
    """Seconds since 1970. Imports datetime only for text."""
    found: float | None
    if isinstance(value, str):
        from gflow.options.times import parse_time

        found = parse_time(value)
    else:
        found = value if type(value) in (int, float) else None
    if found is None:
        refuse(
            f"--{option.name} does not understand {quote(value)}",
            "write 20:00, 2026-12-24T08:00, 2026-12-24, now+2h or 10 (minutes from now)",
        )
    if not 0 <= found < LAST_TIME:  # also refuses NaN
        refuse(f"--{option.name} must be between 1970 and 9998, not {quote(value)}")
    return float(found)


def read_signal(value: Any, option: Option) -> tuple[int, int]:
    """`USR1@60`: a signal by name or number, and how long before the end (60 s, 2m). Default 60.

    With Slurm's `B:` before it the number is negative: only the job's first process gets the signal.
    """
    from gflow.options.durations import parse_duration  # only for options of this kind

    if isinstance(value, (list, tuple)):
        value = "@".join(map(str, value)) if len(value) == 2 else ""
    text = value.upper() if isinstance(value, str) else ""
    to_first = text.startswith(("B:", "-"))
    name, _, seconds = text.removeprefix("B:").removeprefix("-").partition("@")
    number = SIGNALS.get(name.removeprefix("SIG"))
    if number is None and is_digits(name) and 1 <= int(name) <= 64:
        number = int(name)
    before_s = parse_duration(seconds or "60", 1)
    if number is None or before_s is None:
        refuse(f"--{option.name} does not understand {quote(value)}", "write USR1@60 (seconds) or TERM@2m")
    return -number if to_first else number, before_s


def read_path(value: Any, option: Option) -> str:
    """A file or folder by name."""
    if not isinstance(value, str) or not value or "\0" in value or len(value) > 4096:
        refuse(f"--{option.name} takes a path, not {quote(value)}")
    return value


def read_text(value: Any, option: Option) -> str:
    if not isinstance(value, str) or "\0" in value:
        refuse(f"--{option.name} takes text, not {quote(value)}")
    return value


def read_arguments(value: Any, option: Option) -> str:
    """Arguments of a program, quoted as for a shell. They stay text."""
    import shlex  # only for options of this kind

    text = read_text(value, option)
    try:
        shlex.split(text)
    except ValueError:
        refuse(f"--{option.name} {text!a}: a quote is not closed")
    return text


def read_name(value: Any, option: Option) -> str:
    """A name: printable text on one line, so that it cannot control a terminal."""
    if not isinstance(value, str):
        refuse(f"--{option.name} takes text, not {quote(value)}")
    if not value.strip():
        refuse(f"--{option.name} must not be empty")
    most = option.high or NAME_LENGTH
    if len(value) > most:
        refuse(f"--{option.name} must be at most {most} characters, not {len(value)}")
    if not value.isprintable():
        refuse(f"--{option.name} must be printable text on one line, not {quote(value)}")
    return value


def read_target(value: Any, option: Option) -> str:
    """The name of a target; empty: this machine."""
    if value in ("", "local"):
        return ""
    name = read_name(value, option)
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum() or len(name) > 40:
        refuse(f"--{option.name} takes the name of a target, not {quote(value)}", "local, slurm, or a name")
    return name


def read_depends(value: Any, option: Option) -> tuple[str, ...]:
    """Job references: `17`, `42_3`, `g116`, `@`, `@~2`, separated by commas."""
    if type(value) is int:
        value = str(value)
    if isinstance(value, (list, tuple)):
        value = ",".join(str(part) for part in value)
    parts = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else ()
    if len(parts) > MOST_PARENTS:
        refuse(f"--{option.name} may name at most {MOST_PARENTS:,} jobs, not {len(parts):,}")
    for part in parts or ("",):
        if not is_job_reference(part):
            refuse(
                f"--{option.name} does not understand {quote(part)}",
                "write a job id (17), a group (g116), @ for your latest job, or @~1 for the one before it",
            )
    return parts


def read_list(value: Any, option: Option) -> Any:
    """Options whose value is a list of words. Imports their readers only when needed."""
    from gflow.options import lists

    return lists.READERS[option.kind](value, option)


def read_params(value: Any, option: Option) -> Any:
    """Parameters of a sweep: ((name, (value, …)), …). Imports their reader only when needed."""
    from gflow.options.sweeps import parameters

    return parameters(value, option)


def is_job_reference(text: str) -> bool:
    """Whether `text` is `17`, `42_3`, `g116`, `@`, `@~2` or `@~2_3`."""
    if is_group(text):
        return True
    number, bar, task = text.partition("_")
    if number != "@":
        number = number.removeprefix("@~")
    return (number == "@" or is_digits(number)) and (not bar or is_digits(task))


def is_group(text: str) -> bool:
    """Whether `text` names the jobs of a group: `g116`."""
    return text.startswith("g") and is_digits(text[1:]) and len(text) <= 13


def _size(text: str) -> int | None:
    """MiB, rounded up; None: not a size."""
    number = text.strip().upper()
    for tail in ("IB", "B", "I"):  # 20GiB, 20GB, 20Gi; a bare B is not read as MB
        if number.removesuffix(tail)[-1:] in UNITS:
            number = number.removesuffix(tail)
    unit = number[-1:] if number[-1:] in UNITS else "M"
    digits, dot, fraction = number.removesuffix(unit).partition(".")
    if not is_digits(digits) or (dot and not is_digits(fraction)):
        return None
    scale = int("1" + "0" * len(fraction))
    kib = int(digits + fraction) * UNITS[unit]
    return -(-kib // (1024 * scale))


def _array(text: str) -> tuple[list[tuple[int, int, int]], str]:
    """(first, last, step) of every range, and the cap; an empty list: invalid."""
    body, percent, cap = text.strip().partition("%")
    if percent and not is_digits(cap):
        return [], ""
    spans = []
    for part in body.split(","):
        ends, colon, step = part.strip().partition(":")
        first, dash, last = ends.partition("-")
        words = [first] + [last] * bool(dash) + [step] * bool(colon)
        if not all(is_digits(word) for word in words) or (colon and not dash) or (colon and not int(step)):
            return [], ""
        low, high, by = int(first), int(last or first), int(step or 1)
        if high < low:
            return [], ""
        spans.append((low, low + (high - low) // by * by, by))
    return spans, cap


def _disjoint(spans: list[tuple[int, int, int]], option: Option) -> list[tuple[int, int, int]]:
    """The ranges in order. Refuses duplicates of a task."""
    ordered = sorted(spans)
    seen_to = -1
    for first, last, _ in ordered:
        if first <= seen_to:
            tasks = {task for low, high, by in ordered for task in range(low, high + 1, by)}
            if len(tasks) < sum((high - low) // by + 1 for low, high, by in ordered):
                refuse(f"--{option.name} names a task twice")
            _check_overlap(ordered, option)
            return ordered  # interleaved, like 0-98:2,1-99:2
        seen_to = max(seen_to, last)
    return ordered


def _check_overlap(spans: list[tuple[int, int, int]], option: Option) -> None:
    """Bound the number of overlapping ranges: finding a task is linear in it."""
    depth = 0
    for _, change in sorted([(first, 1) for first, _, _ in spans] + [(last + 1, -1) for _, last, _ in spans]):
        depth += change
        if depth > ARRAY_OVERLAP:
            refuse(
                f"--{option.name} has more than {ARRAY_OVERLAP} interleaved ranges",
                "use fewer ranges, or submit several arrays",
            )


def _span_text(first: int, last: int, step: int) -> str:
    if first == last:
        return str(first)
    return f"{first}-{last}" + (f":{step}" if step != 1 else "")


def _integer(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, str):
        digits = value[1:] if value[:1] in "+-" else value
        if is_digits(digits):
            return int(value)
    return None


READERS: dict[str, Callable[[Any, Option], Any]] = {
    "flag": read_flag,
    "count": read_count,
    "duration": read_duration,
    "text": read_text,
    "arguments": read_arguments,
    "seconds": read_seconds,
    "change": read_change,
    "signal": read_signal,
    "path": read_path,
    "size": read_size,
    "need": read_need,
    "prediction": read_prediction,
    "array": read_array,
    "time": read_time,
    "name": read_name,
    "depends": read_depends,
    "patterns": read_list,
    "retry": read_list,
    "rules": read_list,
    "emails": read_list,
    "events": read_list,
    "shapes": read_list,
    "shape": read_list,
    "sbatch": read_list,
    "target": read_target,
    "params": read_params,
}
