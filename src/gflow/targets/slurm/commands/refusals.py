"""Refusals of sbatch: which are permanent, which pass by themselves, and the limit that one names. Pure.

An accepted job ends only for a permanent refusal. Any other one, also of a kind that is not known here, such
as a message of a site's plugin, keeps it queued.
"""

from __future__ import annotations

import re
from enum import Enum

# The code of a limit of an account or QOS, which sbatch prints before its sentence.
LIMIT = re.compile(r"\b(?:Assoc|QOS|Part)[A-Z]\w*(?:Limit|Per\w+)\b|\b(?:Assoc|QOS)(?:Grp|Max|Min)\w+")
# Limits on the number of jobs that wait and run.
SUBMIT_LIMIT = re.compile(r"SubmitJob|submit limit", re.IGNORECASE)
PASSING = re.compile(
    r"temporar|try (again|later)|retry|\bbusy\b|overload|credential|authentication|standby|maintenance|"
    r"not available now|not usable now|inactive or drain|down, drained|i/o error|too many|"
    r"rate limit|no space left|quota exceeded|cannot allocate memory|there is no sbatch",
    re.IGNORECASE,
)
PERMANENT = re.compile(
    r"invalid|unrecognized|not permitted|not supported|not allowed|(permission|access) denied|"
    r"configuration is not available|can ?not be satisfied|exceeds|requested than permitted|too long|"
    r"not provided|no partition specified|dependency problem|script is empty|line breaks|"
    r"unable to open file|violates|"
    r"cannot be run in .*: (no such (file|folder)|not a directory|permission denied)",
    re.IGNORECASE,
)


class Refusal(Enum):
    """How a refusal is treated. UNKNOWN: neither kind is recognised."""

    PERMANENT = "permanent"
    PASSING = "passing"
    UNKNOWN = "unknown"


def classify(text: str) -> Refusal:
    """The kind of a refusal, from everything that sbatch printed."""
    if limit := limit_of(text):
        return Refusal.PASSING if SUBMIT_LIMIT.search(limit) else Refusal.PERMANENT
    if SUBMIT_LIMIT.search(text) or PASSING.search(text):
        return Refusal.PASSING
    return Refusal.PERMANENT if PERMANENT.search(text) else Refusal.UNKNOWN


def limit_of(text: str) -> str:
    """The code of the limit that a refusal names; empty: none."""
    found = LIMIT.search(text)
    return found[0] if found else ""
