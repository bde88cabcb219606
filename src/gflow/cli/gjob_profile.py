"""gjob profile: ask a running gflow.train run for a trace of its next steps."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from gflow.client import hot_path, http
from gflow.client.profile_trace import profile_view
from gflow.client.run_profile import PATIENCE_S, STEPS, make_profile
from gflow.errors import Refused, UsageError, clean_page
from gflow.text.profile_page import profile_page

PHASES = {
    "waiting": "waiting for the end of a step",
    "warm-up": "warming up",
    "recording": "recording",
    "writing": "writing the trace",
}


def profile(values: dict[str, Any], job: str, become_owner: Callable[[int], None]) -> int:
    """Make the profile, print its figures, and copy the trace if asked. `become_owner`: before files."""
    output = values.get("output", "")
    if output:
        output = os.path.abspath(output)
        _check_output(output)
    place = http.get(http.job_path(job, "/profile"))
    become_owner(place["uid"])
    is_terminal = sys.stderr.isatty()
    try:
        made = make_profile(
            place,
            steps=values.get("steps", STEPS),
            memory="memory" in values,
            patience_s=values.get("timeout", PATIENCE_S),
            on_state=_show_state if is_terminal else None,
        )
    finally:
        if is_terminal:
            sys.stderr.write("\r\x1b[K")
    view = profile_view(made)
    if "memory" in values and view["files"]["memory_snapshot"] is None:
        view["notes"].append("there is no memory snapshot: the run does not use a GPU")
    if output:
        _copy(made.trace, output)
        view["files"]["copy"] = output
    if "json" in values:
        hot_path.write(1, http.json_line(hot_path.dumps(view).encode()))
        return 0
    columns = int(hot_path.terminal().get("width", 80))
    copied = f"Copy of the trace: {output}\n" if output else ""
    hot_path.write(1, clean_page(profile_page(view, columns) + copied).encode())
    return 0


def _check_output(path: str) -> None:
    """Refuse a path that cannot be written before the run is asked."""
    if os.path.isdir(path):
        raise UsageError(f"--output {path!a} is a folder", hint="name a file: --output trace.json.gz")
    if not os.path.isdir(os.path.dirname(path)):
        raise UsageError(f"--output {path!a}: its folder does not exist")


def _copy(trace: str, output: str) -> None:
    """Copy the trace; a name without .gz gets the plain JSON."""
    try:
        if output.endswith(".gz"):
            shutil.copyfile(trace, output)
            return
        with gzip.open(trace, "rb") as packed, open(output, "wb") as plain:
            shutil.copyfileobj(packed, plain)
    except OSError as error:
        raise Refused(
            f"the trace cannot be copied to {output}: {error.strerror or error}", hint=f"it is at {trace}"
        ) from error


def _show_state(phase: str, done: int, steps: int) -> None:
    """Show on the terminal how far the run is."""
    count = f" {done} of {steps} steps" if phase == "recording" else ""
    sys.stderr.write(f"\r{PHASES.get(phase, phase)}{count} …\x1b[K")
    sys.stderr.flush()
