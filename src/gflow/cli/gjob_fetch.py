"""gjob fetch: copy files of a job from the cluster into its folder here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gflow.client import hot_path, http
from gflow.errors import Refused, clean_page
from gflow.options.job_options import JOB
from gflow.options.values import read
from gflow.targets.slurm.commands.command_runner import CommandRunner, Runner
from gflow.targets.slurm.files.local_snapshots import LocalSnapshots, spell_bytes
from gflow.targets.slurm.files.result_fetch import Fetched, FetchOrder, ResultFetch
from gflow.targets.slurm.ssh.ssh_runner import SshRunner

# Names of kept files that are shown.
MOST_NAMED = 5
PATTERNS = next(option for option in JOB if option.name == "outputs")


def fetch(values: dict[str, Any], job: str, patterns: list[str], become_owner: Callable[[int], None]) -> int:
    """Fetch the files, and print how many there were. `become_owner`: before files are written."""
    wanted = read(PATTERNS, tuple(patterns)) if patterns else ()
    place = http.get(http.job_path(job, "/files"))
    become_owner(place["uid"])
    order = FetchOrder(
        there=place["there"],
        here=os.path.abspath(values["to"]) if "to" in values else place["here"],
        patterns=wanted,
        snapshot=place["snapshot"] or "",
        below=place["below"],
        started_at=place["started_at"],
        overwrites="overwrite" in values,
    )
    is_terminal = sys.stderr.isatty()
    result = ResultFetch(_runner(place), LocalSnapshots(Path(place["snapshots"]))).fetch(
        order, sys.stderr.buffer if is_terminal else None
    )
    if not result.ok:
        raise Refused(
            f"the files of job {place['job_id']} were not fetched: {result.error}",
            hint=f"the same command goes on where it stopped; they are in {order.there}",
        )
    if "json" in values:
        hot_path.write(1, http.json_line(hot_path.dumps(_view(order, result)).encode()))
        return 0
    hot_path.write(1, clean_page(_page(order, result)).encode())
    return 0


def _runner(place: dict[str, Any]) -> Runner:
    if place["host"] is None:
        return CommandRunner()
    return SshRunner(place["host"], Path(place["ssh_folder"]), name=place["target"])


def _view(order: FetchOrder, result: Fetched) -> dict[str, Any]:
    kept = [os.fsdecode(path) for path in result.kept]
    return {"files": result.files, "bytes": result.size, "folder": order.here, "kept": kept}


def _page(order: FetchOrder, result: Fetched) -> str:
    if result.files:
        what = "1 file" if result.files == 1 else f"{result.files:,} files"
        lines = [f"Fetched {what} ({spell_bytes(result.size)}) into {order.here}."]
    else:
        lines = [f"There are no new files in {order.there}."]
    if result.kept:
        named = [ascii(os.fsdecode(path))[1:-1] for path in result.kept[:MOST_NAMED]]
        more = f" and {len(result.kept) - MOST_NAMED} more" if len(result.kept) > MOST_NAMED else ""
        lines.append(f"Kept, as newer here: {', '.join(named)}{more} (--overwrite replaces them).")
    return "\n".join(lines) + "\n"
