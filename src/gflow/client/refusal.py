"""The errors for requests that the daemon refused. Imported only when it refuses one."""

from __future__ import annotations

from functools import cache
from typing import Any

from gflow import errors
from gflow.errors import GflowError

# The public name of the base class: `except gflow.Error`.
Error = GflowError
# Classes by the code in an answer. Not Unreachable: callers retry it, and the daemon has answered.
KINDS = (
    errors.UsageError, errors.TooLarge, errors.TooMany, errors.Refused, errors.NotFound,
    errors.Unauthorized, errors.Forbidden, errors.ReadOnly,
)  # fmt: skip


class DaemonError(GflowError):
    """The daemon refused a request."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("title", "the daemon failed"), hint=problem.get("hint", ""))
        self.code = problem.get("code", "internal")
        self.exit_code = problem.get("exit_code", 1)


def daemon_error(problem: dict[str, Any]) -> DaemonError:
    """The error of an answer: a DaemonError, and of the class that has its code (NotFound, Refused, …)."""
    return _class_of(problem.get("code", ""))(problem)


@cache
def _class_of(code: str) -> type[DaemonError]:
    for kind in KINDS:
        if kind.code == code:
            return type(kind.__name__, (DaemonError, kind), {"__doc__": kind.__doc__, "__module__": "gflow"})
    return DaemonError
