"""Readers of options that take lists of words: ends, addresses, events. Loaded only when somebody asks.

GPU indices as people write them. Without imports: gctl is in a hurry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.options.node_shape import is_name, parse_shape
from gflow.options.table import SIGNALS, Option, is_digits, quote, refuse

# Ends that --retry-on names; two of them can say which number.
RETRY_KINDS = ("any", "failed", "oom", "timeout", "exit", "signal", "lost", "start")
CODED = ("exit", "signal")
FATAL = SIGNALS | {"ILL": 4, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "SEGV": 11, "PIPE": 13}
MOST_ADDRESSES = 20
MOST_SHAPES = 16
HOW_SBATCH = "write it as sbatch has it, in one word: --slurm=--licenses=matlab"
# Options of sbatch on which what gflow knows of a job rests.
OURS = frozenset(
    {
        "--array", "--comment", "--dependency", "--error", "--export", "--export-file", "--hold",
        "--job-name", "--kill-on-invalid-dep", "--no-requeue", "--open-mode", "--output", "--parsable",
        "--requeue", "--test-only", "--wait", "--wrap",
    }
)  # fmt: skip
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


def read_shapes(value: Any, option: Option) -> tuple[str, ...]:
    """Shapes of a race: at least two, each once."""
    shapes = tuple(_entry(part, option) for part in _parts(value, option))
    if len(set(shapes)) < 2 or len(set(shapes)) < len(shapes):
        refuse(f"--{option.name} takes two different shapes or more", "gbatch --race n1_gpu4,n4_gpu1 …")
    if len(shapes) > MOST_SHAPES:
        refuse(f"--{option.name} takes at most {MOST_SHAPES} shapes, not {len(shapes)}")
    return shapes


def read_shape(value: Any, option: Option) -> str:
    """One shape, written as we write it, or the name of one."""
    if not isinstance(value, str):
        refuse(f"--{option.name} takes text, not {quote(value)}")
    return value.strip() if is_name(value) else "n{}_gpu{}".format(*parse_shape(value))


def _entry(text: str, option: Option) -> str:
    """`n4_gpu1`, or with the target that it is of: `local:n1_gpu2`. A name is the daemon's to know."""
    target, colon, shape = text.rpartition(":")
    if is_name(shape):
        return text
    nodes, gpus = parse_shape(shape)
    if target == "local" and nodes != 1:
        refuse(f"--{option.name} {text}: this machine is one node", "local:n1_gpu2")
    return f"{target}{colon}n{nodes}_gpu{gpus}"


def read_sbatch(value: Any, option: Option) -> tuple[str, ...]:
    """Options for sbatch, one each, that are not ours to give."""
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        refuse(f"--{option.name} takes text, not {quote(value)}")
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("--") or len(name) < 4 or not word.isprintable():
            refuse(f"--{option.name} takes an option of sbatch, not {quote(word)}", HOW_SBATCH)
        if name in OURS:
            refuse(f"--{option.name}: {name} is what gflow itself tells sbatch", "see gbatch --help for ours")
    return tuple(words)


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
    "shapes": read_shapes,
    "shape": read_shape,
    "sbatch": read_sbatch,
}


GPU_MOST = 1024


def parse_indices(text: str) -> tuple[int, ...] | None:
    """`0,2-3` to (0, 2, 3); None if it is not that."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdecimal() and len(end) <= 4 for end in ends):
            return None
        low, high = map(int, ends)
        if high < low or high >= GPU_MOST:
            return None
        found.update(range(low, high + 1))
    return tuple(sorted(found))
