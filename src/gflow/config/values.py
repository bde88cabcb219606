"""Readers of settings: convert the text or TOML value of a setting to the value that the daemon uses.

A reader gets the value and the setting. It returns None for an invalid value; the caller raises the error,
with its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.config.table import Setting
from gflow.errors import UsageError
from gflow.options.lists import GPU_MOST, parse_indices


def read(setting: Setting, value: Any, where: str) -> Any:
    """The value of one setting. Raises UsageError that names the place (`where`) and the key."""
    reader, expected = READERS[setting.kind]
    found = reader(value, setting)
    if found is None:
        wanted = expected or "one of " + ", ".join(setting.choices)
        raise UsageError(f"{where}: {setting.key} takes {wanted}, not {_quote(value)}", hint=setting.help)
    if setting.kind == "count" and found < setting.low:
        raise UsageError(f"{where}: {setting.key} must be at least {setting.low}, not {found}")
    return None if found is ALL else found


def _quote(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return ascii(text if len(text) <= 60 else text[:57] + "...")


class _All:
    """Sentinel for "all GPUs", which is None outside this module. Inside it, None means invalid."""


ALL = _All()


def read_count(value: Any, setting: Setting) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 9:
        return int(value)
    return value if type(value) is int and 0 <= value < 1_000_000_000 else None


def read_share(value: Any, setting: Setting) -> int | str | None:
    """A count, or a percentage: `15%`."""
    if isinstance(value, str) and value.endswith("%"):
        percent = read_count(value[:-1], setting)
        return f"{percent}%" if percent is not None and 1 <= percent <= 100 else None
    return read_count(value, setting)


def read_flag(value: Any, setting: Setting) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
            value.lower()
        )
    return value if isinstance(value, bool) else None


def read_text(value: Any, setting: Setting) -> str | None:
    return value if isinstance(value, str) and value.isprintable() else None


def read_choice(value: Any, setting: Setting) -> str | None:
    return value if isinstance(value, str) and value in setting.choices else None


def read_names(value: Any, setting: Setting) -> tuple[str, ...] | None:
    """A list of words; as text, separated by commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        return None
    names = tuple(part.strip() for part in parts)
    return names if all(name and name.isprintable() for name in names) else None


def read_numbers(value: Any, setting: Setting) -> tuple[int, ...] | None:
    """A list of whole numbers, possibly empty; as text, separated by commas."""
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
        value = [int(part) if part.strip().isascii() and part.strip().isdecimal() else None for part in value]
    if not isinstance(value, (list, tuple)):
        return None
    return tuple(value) if all(type(part) is int and 0 <= part < 100_000 for part in value) else None


def read_gpus(value: Any, setting: Setting) -> tuple[int, ...] | _All | None:
    """Indices: `[0, 2]`, or `0,2-3` as text, or `all`."""
    if value == "all":
        return ALL
    return parse_indices(value) if isinstance(value, str) else _indices(value)


def _indices(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, (list, tuple)) or not value:
        return None
    is_valid = all(type(index) is int and 0 <= index < GPU_MOST for index in value)
    return tuple(sorted(set(value))) if is_valid else None


def read_tables(value: Any, setting: Setting) -> tuple[dict[str, Any], ...] | None:
    """`[[tables]]` of a file. Their content is validated where it is used."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(table, dict) for table in value):
        return None
    return tuple(value)


def read_named_tables(value: Any, setting: Setting) -> dict[str, dict[str, Any]] | None:
    """`[targets.NAME]`, `[shapes.NAME]` of a file. Their content is validated where it is used."""
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        return None
    return value


LIMITS = ("max_running_jobs", "max_running_gpus", "max_queued_jobs")


def read_limits(value: Any, setting: Setting) -> dict[str, int] | None:
    """`{max_running_gpus = 4}`; as text `max_running_gpus=4,max_queued_jobs=100`."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",")]
        value = {name.strip(): count.strip() for name, _, count in pairs}
    if not isinstance(value, dict) or not value.keys() <= set(LIMITS):
        return None
    found = {name: read_count(count, setting) for name, count in value.items()}
    counts = {name: count for name, count in found.items() if count is not None}
    return counts if len(counts) == len(found) else None


def read_quotas(value: Any, setting: Setting) -> dict[str, dict[str, int]] | None:
    """Limits by name. From a file only."""
    if not isinstance(value, dict):
        return None
    found = {name: read_limits(limits, setting) for name, limits in value.items()}
    named = {name: limits for name, limits in found.items() if limits is not None}
    return named if len(named) == len(found) and all(name and name.isprintable() for name in named) else None


def read_members(value: Any, setting: Setting) -> dict[str, tuple[str, ...]] | None:
    """Lists of names by name. From a file only."""
    if not isinstance(value, dict) or any(isinstance(names, str) for names in value.values()):
        return None
    found = {name: read_names(names, setting) for name, names in value.items()}
    named = {name: names for name, names in found.items() if names is not None}
    return named if len(named) == len(found) and all(name and name.isprintable() for name in named) else None


def read_zone(value: Any, setting: Setting) -> str | None:
    """The name of a time zone in this machine's database; `local` is the machine's own zone."""
    from zoneinfo import ZoneInfo

    if value in ("", "local"):
        return ""
    try:
        return ZoneInfo(value).key if isinstance(value, str) else None
    except (ValueError, OSError):  # an invalid path; an unknown zone is a KeyError
        return None
    except KeyError:
        return None


READERS: dict[str, tuple[Callable[[Any, Setting], Any], str]] = {
    "count": (read_count, "a whole number"),
    "flag": (read_flag, "true or false"),
    "text": (read_text, "text"),
    "choice": (read_choice, ""),
    "share": (read_share, "a whole number, or a share such as 15%"),
    "names": (read_names, "a list of names"),
    "numbers": (read_numbers, "a list of whole numbers"),
    "gpus": (read_gpus, "GPU indices such as 0,2 or 0-3, or all"),
    "tables": (read_tables, "tables in a file: [[notifications.webhooks]]"),
    "named tables": (read_named_tables, "named tables in a file"),
    "limits": (read_limits, "limits: max_running_jobs, max_running_gpus, max_queued_jobs"),
    "quotas": (read_quotas, "limits by name in a file: ann = {max_running_gpus = 8}"),
    "members": (read_members, 'lists of users and groups by name in a file: vision = ["ann", "@vision"]'),
    "zone": (read_zone, "the name of a time zone, such as Europe/Berlin"),
}
