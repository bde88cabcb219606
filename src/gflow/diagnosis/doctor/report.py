"""The result of a check: ok, warning or problem, with the fix as a command."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Level(enum.IntEnum):
    """How bad a finding is."""

    OK = 0
    WARNING = 1
    PROBLEM = 2


class CheckResult(NamedTuple):
    """One line of the report. `name` is stable: programs compare it."""

    name: str
    level: Level
    text: str
    fix: str = ""


def ok(name: str, text: str) -> CheckResult:
    return CheckResult(name, Level.OK, text)


def warning(name: str, text: str, fix: str) -> CheckResult:
    return CheckResult(name, Level.WARNING, text, fix)


def problem(name: str, text: str, fix: str) -> CheckResult:
    return CheckResult(name, Level.PROBLEM, text, fix)
