"""Readers of options that take lists of words: ends, addresses, events. Loaded only when somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.options.table import Option
from gflow.options.values import SIGNALS, is_digits, quote, refuse

# Ends that --retry-on names; two of them can say which number.
RETRY_KINDS = ("any", "failed", "oom", "timeout", "exit", "signal", "lost", "start")
CODED = ("exit", "signal")
FATAL = SIGNALS | {"ILL": 4, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "SEGV": 11, "PIPE": 13}
MOST_ADDRESSES = 20
# What can be told of a job, less the `job_` before each.
EVENTS = (
    "submitted", "updated", "started", "completed", "failed", "cancelled", "timeout", "held", "released",
)  # fmt: skip


def read_retry(value: Any, option: Option) -> tuple[str, ...]:
    """Ends after which a job is tried again: `oom,exit:75,timeout`."""
    kinds = []
    for part in _parts(value, option):
        kind, colon, detail = part.lower().partition(":")
        number = FATAL.get(detail.upper().removeprefix("SIG")) if kind == "signal" else None
        if number is None and colon and is_digits(detail) and 1 <= int(detail) <= 255:
            number = int(detail)
        if kind not in RETRY_KINDS or bool(colon) != (number is not None) or (colon and kind not in CODED):
            refuse(
                f"--{option.name} does not understand {quote(part)}",
                "write " + ", ".join(RETRY_KINDS) + ", exit:75 or signal:9",
            )
        kinds.append(f"{kind}:{number}" if colon else kind)
    return tuple(dict.fromkeys(kinds))


def read_emails(value: Any, option: Option) -> tuple[str, ...]:
    """Addresses, several with commas."""
    addresses = _parts(value, option)
    if len(addresses) > MOST_ADDRESSES:
        refuse(f"--{option.name} takes at most {MOST_ADDRESSES} addresses, not {len(addresses)}")
    for address in addresses:
        person, at, host = address.rpartition("@")
        # "=?" begins what mail programs read as something else.
        plain = address.isprintable() and "=?" not in address and not set(address) & set(' <>()[],;:\\"')
        if not (person and at and host and plain) or "@" in person or len(address) > 254:
            refuse(f"--{option.name} takes an address like ann@example.org, not {quote(address)}")
    return tuple(dict.fromkeys(addresses))


def read_events(value: Any, option: Option) -> tuple[str, ...]:
    """Events to be told of; `failed` is `job_failed`."""
    events = [part if part.startswith("job_") else "job_" + part for part in _parts(value, option)]
    for event in events:
        if event.removeprefix("job_") not in EVENTS:
            refuse(
                f"--{option.name} knows no event {quote(event)}",
                "events: " + ", ".join("job_" + name for name in EVENTS),
            )
    return tuple(dict.fromkeys(events))


def _parts(value: Any, option: Option) -> list[str]:
    """`a,b` or a JSON list of texts."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        refuse(f"--{option.name} takes text, not {quote(value)}")
    parts = [part.strip() for part in value]
    if not parts or not all(parts):
        refuse(f"--{option.name} must not be empty")
    return parts


READERS: dict[str, Callable[[Any, Option], Any]] = {
    "retry": read_retry,
    "emails": read_emails,
    "events": read_events,
}
