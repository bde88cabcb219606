"""Rules of early stopping (`loss > 2 at step 500`): their grammar, and whether a value meets one."""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite
from operator import ge, gt, le, lt
from typing import NamedTuple

from gflow.metric_names import is_metric_name

# Rules of one job.
MOST_RULES = 16
# Values of siblings that a rule about the median needs. Before that it stops no job.
FEWEST_SIBLINGS = 3
FORMS = "'loss > 2 at step 500', 'loss is nan', 'loss above median at step 500'"
MEDIAN = {"above median": gt, "below median": lt}
NAN = "is nan"
_COMPARISONS = {">": gt, ">=": ge, "<": lt, "<=": le} | MEDIAN
_RULE = re.compile(
    r"(?P<metric>[^\s<>=]+)"
    r"(?: ?(?P<operator>[<>]=?) ?(?P<bound>\S+)| (?P<words>is nan|(?:above|below) median))"
    r"(?: (?P<when>at|after) step (?P<step>[0-9]{1,15}))?",
    re.IGNORECASE,
)


class StopRule(NamedTuple):
    """A metric, what is wrong with it, and the step. `when`: `at`, `after`, or empty for any report."""

    metric: str
    condition: str
    bound: float = 0.0
    when: str = ""
    step: int = 0

    def __str__(self) -> str:
        """The canonical text, which is stored."""
        bound = "" if self.condition in (NAN, *MEDIAN) else f" {_spell(self.bound)}"
        step = f" {self.when} step {self.step}" if self.when else ""
        return f"{self.metric} {self.condition}{bound}{step}"

    @property
    def is_about_median(self) -> bool:
        return self.condition in MEDIAN

    def is_met(self, value: float, bound: float) -> bool:
        """Whether a value is on the wrong side of the bound: the rule's own, or the median."""
        return bool(_COMPARISONS[self.condition](value, bound))


@lru_cache(1024)
def parse_rule(text: str) -> StopRule:
    """Parse a rule. Raises ValueError with one sentence about the first mistake."""
    words = " ".join(text.split())
    found = _RULE.fullmatch(words)
    if found is None or not is_metric_name(found["metric"]):
        raise ValueError(_complaint(words))
    condition = (found["operator"] or found["words"]).lower()
    when, step = (found["when"] or "").lower(), int(found["step"] or 0)
    if condition in MEDIAN and when != "at":
        raise ValueError(f"{words!a:.60} needs a step at which jobs are compared: at step 500")
    return StopRule(found["metric"], condition, _bound(words, found["bound"]), when, step)


def _bound(words: str, text: str | None) -> float:
    try:
        bound = float(text or 0)
    except ValueError:
        bound = float("nan")
    if not isfinite(bound):
        raise ValueError(f"{words!a:.60} compares with {text!a:.30}, which is not a number")
    return bound


def _complaint(words: str) -> str:
    if "worse than" in words.lower():
        return f"{words!a:.60} does not say which values are worse: write above median or below median"
    return f"{words!a:.60} is not a rule"


def _spell(number: float) -> str:
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
