"""`gflowd up` through the user's service manager, as far as that can be tried without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.harness import Box, wait_until

UP = """
import sys
from gflow.cli.daemon import lifecycle, logind
logind.decide = lambda facts: logind.Plan(before=({program!r}, "--scope"), note="a note")
sys.exit(lifecycle.up({{}}))
"""


@pytest.mark.parametrize("works", [True, False])
def test_the_daemon_starts_with_or_without_the_manager(box: Box, tmp_path: Path, works: bool) -> None:
    program = tmp_path / "systemd-run"
    line = 'shift; exec env SCOPED=1 "$@"' if works else "exit 1"
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    script = tmp_path / "up.py"
    script.write_text(UP.format(program=str(program)))
    python = Path(sys.executable).name
    out = box.ok(python, str(script))
    assert "gflowd is running (PID: " in out
    assert out.endswith("\n(a note)\n")
    pid = int(out.split("PID: ")[1].split(")")[0])
    assert (b"SCOPED=1" in Path(f"/proc/{pid}/environ").read_bytes()) is works
    assert f"PID: {pid}" in box.ok("gflowd", "status")
    box.ok("gflowd", "down")
    wait_until(lambda: not box.processes(), what="the last shim to leave")
