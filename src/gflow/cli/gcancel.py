"""gcancel: cancel waiting and running jobs."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.options.commands.gcancel_options import OPTIONS
from gflow.options.commands.gcancel_request import gcancel_request
from gflow.options.parse import parse

# What a cancel would do to a job, on a terminal.
VERDICTS = {"ok": "cancelled", "invalid": "has ended", "blocked": "cannot start"}


def run(words: list[str]) -> int:
    values, jobs = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options.commands.help_pages import help_page

        sys.stdout.write(help_page("gcancel"))
        return 0
    if "me" in values:
        from gflow.cli.common.listing import add_me

        add_me(values)
    path, wanted = gcancel_request(values, jobs)
    body = hot_path.dumps(wanted).encode()
    if wanted.get("dry_run") and "json" not in values and sys.stdout.isatty():
        return _show_preview(body)
    return http.show_changes(path, body, as_json="json" in values)


def _show_preview(body: bytes) -> int:
    """Print what a cancel would do, as a table for a terminal."""
    import json
    import os

    from gflow.errors import clean
    from gflow.text.table import Sheet

    sheet = Sheet(("JOBID", "NAME", "USER", "STATE", "RESULT", "PARENTS"))
    jobs = json.loads(http.ask("POST", "/jobs/cancel", body, "application/json", {}))["jobs"]
    for job in jobs:
        parents = ",".join(map(str, job["parents"]))
        name, user = clean(job["name"]), clean(job["user"])
        sheet.add((str(job["id"]), name, user, job["state"], VERDICTS[job["verdict"]], parents))
    width = os.get_terminal_size(1).columns
    sys.stdout.write("".join(sheet.lines(width, [[1], [2, 5]])) if jobs else "No jobs match.\n")
    return 0
