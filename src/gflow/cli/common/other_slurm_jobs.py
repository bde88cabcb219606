"""Slurm jobs that gflow did not submit, below a listing of jobs (`gqueue --target NAME`)."""

from __future__ import annotations

import sys
from typing import Any

from gflow.client import hot_path, http
from gflow.client.refusal import DaemonError


def add_others(content: bytes, clusters: list[str], *, is_json: bool) -> tuple[bytes, int]:
    """The listing with the other jobs on these clusters, and the exit code.

    A cluster that does not answer is named on the standard error.
    """
    found: list[Any] = []
    code = 0
    for name in clusters:
        try:
            found.append(_ask(name, is_json=is_json))
        except DaemonError as error:
            sys.stderr.write(f"gqueue: {error.message}; its other jobs are not shown\n")
            code = 1
    if not is_json:
        return content + b"".join(found), code
    listing = http.parse_json(content)
    listing["others"] = [{"target": one["target"], **job} for one in found for job in one["jobs"]]
    return http.json_line(hot_path.dumps(listing).encode()), code


def _ask(name: str, *, is_json: bool) -> Any:
    path = f"/targets/{http.quote(name)}/jobs"
    if is_json:
        return http.get(path, others="1")
    return http.ask("GET", path, b"", "text/plain", {"others": "1"} | hot_path.terminal())
