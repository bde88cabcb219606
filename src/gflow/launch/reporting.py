"""How a launch ended, and what people are told of it."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from gflow.launch import nccl
from gflow.launch.plan import Plan

# NCCL's last warnings that are shown: they go into its log, where nobody would see them.
WARNINGS = 5


class Outcome(NamedTuple):
    """The exit code for all, and which rank is to blame: None if none is."""

    code: int
    blamed: int | None = None
    why: str = ""


def tail(path: str, lines: int = 20) -> str:
    """The last lines of a file."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 65536))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def report(plan: Plan, outcome: Outcome, logs: str, *, kept: bool) -> None:
    """Say what NCCL warned of, and who failed and what it printed last."""
    for warning in nccl.parse(nccl.read(logs)).warnings[-WARNINGS:]:
        sys.stderr.write(f"gflow: NCCL warned: {warning}\n")
    if not outcome.why:
        return
    who = "" if outcome.blamed is None else f"rank {outcome.blamed} "
    others = "; the others were ended" if plan.world > 1 and outcome.blamed is not None else ""
    sys.stderr.write(f"gflow launch: {who}{outcome.why}{others}\n")
    if outcome.blamed:
        last = tail(os.path.join(logs, f"rank-{outcome.blamed}.log"))
        sys.stderr.write("".join(f"  [{outcome.blamed}] {line}\n" for line in last.splitlines()))
    if kept:
        sys.stderr.write(f"gflow launch: what each rank printed is in {logs}\n")
