"""Readers of options that take lists: retry conditions, addresses, events, shapes, GPU indices.

Imported only when such an option is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.job_states import GROUP_EVENTS, LISTED
from gflow.options.job_options import SIGNALS, Option, is_digits, quote, refuse
from gflow.options.node_shape import is_name, parse_shape
from gflow.stop_rules import FORMS, MOST_RULES, parse_rule

# Conditions of --retry-on. Those in CODED take a number.
RETRY_KINDS = ("any", "failed", "oom", "timeout", "exit", "signal", "lost", "start")
CODED = ("exit", "signal")
FATAL = SIGNALS | {"ILL": 4, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "SEGV": 11, "PIPE": 13}
MOST_ADDRESSES = 20
MOST_SHAPES = 16
HOW_SBATCH = "write it as for sbatch, as one word: --slurm=--licenses=matlab"
# Options of sbatch that gflow sets itself, to track the job.
OURS = frozenset(
    {
        "--array", "--comment", "--dependency", "--error", "--export", "--export-file", "--hold",
        "--job-name", "--kill-on-invalid-dep", "--no-requeue", "--open-mode", "--output", "--parsable",
        "--requeue", "--test-only", "--wait", "--wrap",
    }
)  # fmt: skip
# Events of jobs: of a submission, of an update, and one for each state; and those of groups.
EVENTS = ("job_submitted", "job_updated", *(state.row.event for state in LISTED), *GROUP_EVENTS)


def read_retry(value: Any, option: Option) -> tuple[str, ...]:
    """Conditions under which a job is retried: `oom,exit:75,timeout`."""
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


def read_rules(value: Any, option: Option) -> tuple[str, ...]:
    """Rules of early stopping, in canonical form."""
    rules = []
    for part in _parts(value, option):
        try:
            rules.append(str(parse_rule(part)))
        except ValueError as error:
            refuse(f"--{option.name}: {error}", f"rules: {FORMS}")
    if len(rules) > MOST_RULES:
        refuse(f"--{option.name} takes at most {MOST_RULES} rules, not {len(rules)}")
    return tuple(dict.fromkeys(rules))


def read_emails(value: Any, option: Option) -> tuple[str, ...]:
    """Email addresses, separated by commas."""
    addresses = _parts(value, option)
    if len(addresses) > MOST_ADDRESSES:
        refuse(f"--{option.name} takes at most {MOST_ADDRESSES} addresses, not {len(addresses)}")
    for address in addresses:
        person, at, host = address.rpartition("@")
        # "=?" starts an encoded word, which mail programs decode to other text.
        plain = address.isprintable() and "=?" not in address and not set(address) & set(' <>()[],;:\\"')
        if not (person and at and host and plain) or "@" in person or len(address) > 254:
            refuse(f"--{option.name} takes an address like ann@example.org, not {quote(address)}")
    return tuple(dict.fromkeys(addresses))


def read_events(value: Any, option: Option) -> tuple[str, ...]:
    """Events to notify about; `failed` is short for `job_failed`."""
    parts = _parts(value, option)
    events = [part if part.startswith(("job_", "group_")) else "job_" + part for part in parts]
    for event in events:
        if event not in EVENTS:
            from gflow.errors import did_you_mean

            close = did_you_mean(event, EVENTS, "events: " + ", ".join(EVENTS))
            refuse(f"--{option.name}: unknown event {quote(event)}", close)
    return tuple(dict.fromkeys(events))


def read_shapes(value: Any, option: Option) -> tuple[str, ...]:
    """Shapes of a race: at least two, without duplicates."""
    shapes = tuple(_entry(part, option) for part in _parts(value, option))
    if len(set(shapes)) < 2 or len(set(shapes)) < len(shapes):
        refuse(f"--{option.name} takes two different shapes or more", "gbatch --race n1_gpu4,n4_gpu1 …")
    if len(shapes) > MOST_SHAPES:
        refuse(f"--{option.name} takes at most {MOST_SHAPES} shapes, not {len(shapes)}")
    return shapes


def read_shape(value: Any, option: Option) -> str:
    """One shape in canonical form (`n4_gpu1`), or the name of one."""
    if not isinstance(value, str):
        refuse(f"--{option.name} takes text, not {quote(value)}")
    return value.strip() if is_name(value) else "n{}_gpu{}".format(*parse_shape(value))


def _entry(text: str, option: Option) -> str:
    """`n4_gpu1`, or with its target: `local:n1_gpu2`. The daemon resolves names of shapes."""
    target, colon, shape = text.rpartition(":")
    if is_name(shape):
        return text
    nodes, gpus = parse_shape(shape)
    if target == "local" and nodes != 1:
        refuse(f"--{option.name} {text}: this machine is one node", "local:n1_gpu2")
    return f"{target}{colon}n{nodes}_gpu{gpus}"


def read_sbatch(value: Any, option: Option) -> tuple[str, ...]:
    """Options for sbatch, one per word. Options that gflow sets itself are refused."""
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        refuse(f"--{option.name} takes text, not {quote(value)}")
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("--") or len(name) < 4 or not word.isprintable():
            refuse(f"--{option.name} takes an option of sbatch, not {quote(word)}", HOW_SBATCH)
        if name in OURS:
            refuse(f"--{option.name}: gflow sets {name} itself", "see gbatch --help for the options of gflow")
    return tuple(words)


def _parts(value: Any, option: Option) -> list[str]:
    """Split `a,b`, or accept a JSON list of strings."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        refuse(f"--{option.name} takes text, not {quote(value)}")
    parts = [part.strip() for part in value]
    if not parts or not all(parts):
        refuse(f"--{option.name} must not be empty")
    return parts


def read_patterns(value: Any, option: Option) -> tuple[str, ...]:
    """Patterns of files below the job's folder."""
    patterns = _parts(value, option)
    for pattern in patterns:
        if pattern.startswith("/") or ".." in pattern.split("/") or "\0" in pattern:
            refuse(f"a pattern names files below the job's folder, not {quote(pattern)}", "such as 'runs/**'")
    return tuple(dict.fromkeys(patterns))


READERS: dict[str, Callable[[Any, Option], Any]] = {
    "patterns": read_patterns,
    "retry": read_retry,
    "rules": read_rules,
    "emails": read_emails,
    "events": read_events,
    "shapes": read_shapes,
    "shape": read_shape,
    "sbatch": read_sbatch,
}


# Indices of GPUs are below this, and so many may be simulated.
GPU_MOST = 10_000


def parse_indices(text: str) -> tuple[int, ...] | None:
    """Parse `0,2-3` as (0, 2, 3); None: invalid."""
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
