"""One row of the rules: texts of a log, the cause they show, and what to do about it."""

# Annotations are not postponed: as texts they double the time to define a NamedTuple.
import enum
from typing import NamedTuple


class Confidence(enum.IntEnum):
    """How sure a finding is. A CERTAIN text has one cause; a POSSIBLE one is also printed by healthy runs."""

    POSSIBLE = 1
    LIKELY = 2
    CERTAIN = 3


class Depth(enum.IntEnum):
    """How near to the root a cause lies. Errors that follow from another error lie further away."""

    # An error that mostly follows from another one: a peer went away, a launcher reports its child.
    CONSEQUENCE = 1
    # An exception of which only the type is known.
    GENERAL = 2
    # An error with a cause of its own.
    ROOT = 3
    # A broken environment, from which later errors follow.
    SETUP = 4


class Rule(NamedTuple):
    """A text that programs print, and its meaning."""

    # The name of the cause, as in `cuda-oom`. Several rules may find one cause.
    cause: str
    # Literal texts, case-sensitive. Lines that contain one of them are judged; a plain search for a literal is
    # much faster than a regular expression.
    find: tuple[str, ...]
    # What happened, and what to do. `{name}` is a group of the pattern, `{job}` the job, `{cpu_job}` the job if
    # it has no GPU. A part in brackets is left out if its name is missing.
    summary: str
    advice: tuple[str, ...]
    # A line that the rule finds; a test holds it.
    example: str
    # A regular expression that such a line must match; empty: the literal suffices.
    pattern: str = ""
    confidence: Confidence = Confidence.CERTAIN
    depth: Depth = Depth.ROOT
