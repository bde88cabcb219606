"""Point to the user's own daemon where commands use the system-wide one."""

from __future__ import annotations

from gflow import paths
from gflow.client import hot_path, http
from gflow.errors import GflowError

# A daemon that does not answer within this time is not mentioned.
PATIENCE_S = 1.0


def other_jobs() -> str:
    """A line about the jobs of the user's own daemon; empty: it has none, or commands use it anyway."""
    system, own = paths.system_socket(hot_path.getenv), hot_path.own_address()
    if own == system or hot_path.find_socket() != system or not hot_path.exists(own):
        return ""
    hot_path.use_socket(own)
    try:
        status = http.get_within("/status", PATIENCE_S)
    except (OSError, GflowError):
        return ""
    finally:
        hot_path.use_socket(system)
    if not status["running"] + status["waiting"]:
        return ""
    jobs = f"{status['running']} running and {status['waiting']} waiting jobs"
    return f"(your private daemon has {jobs}: gflowd status --private)\n"
