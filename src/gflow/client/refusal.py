"""The error for a request that the daemon refused. Imported only when it refuses one."""

from __future__ import annotations

from typing import Any

from gflow.errors import GflowError


class DaemonError(GflowError):
    """The daemon refused a request."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("title", "the daemon failed"), hint=problem.get("hint", ""))
        self.code = problem.get("code", "internal")
        self.exit_code = problem.get("exit_code", 1)
