"""gcancel: end jobs that wait or run."""

from __future__ import annotations

import json
import sys

from gflow.cli import call
from gflow.errors import UsageError
from gflow.options import help
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON, Option

OPTIONS = (
    Option("now", "flag", "kill at once, without the grace time"),
    JSON,
    *COMMON,
)
ABOUT = """Cancel jobs. A running job gets TERM, then 30 seconds, then KILL; whatever it started
goes with it. Jobs that depend on it are cancelled too."""
EXAMPLES = """gcancel 42
gcancel 42,43 45
gcancel --now @        # my latest job"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        sys.stdout.write(help.render("gcancel [--now] JOB…", ABOUT, OPTIONS, EXAMPLES))
        return 0
    jobs = [part for word in rest for part in word.split(",") if part]
    if not jobs:
        raise UsageError("which jobs?", hint="gcancel 42, or gcancel @ for your latest")
    body = json.dumps({"jobs": jobs, "now": "now" in values}).encode()
    return call.show_answer("POST", "/jobs/cancel", body, as_json="json" in values)
