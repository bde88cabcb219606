"""ginfo: the GPUs and who has them."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.errors import UsageError
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON, WATCH, Option

OPTIONS = (
    Option("long", "flag", "all about each GPU: memory, use, heat, jobs, other processes", short="l"),
    *WATCH,
    JSON,
    *COMMON,
)
ABOUT = """Show the GPUs of this machine and who has them: one row for those that are idle, one for each job,
one for each reason for which GPUs get no jobs. `ginfo info` is `ginfo --long`."""
EXAMPLES = """ginfo
ginfo -l                # model, memory, use, heat, who, idle since, free at
ginfo -w
ginfo --json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if rest and rest != ["info"]:
        raise UsageError(f"ginfo has no command {' '.join(rest)!r}", hint="ginfo, ginfo -l or ginfo --json")
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("ginfo [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    query = {"long": "1"} if rest or "long" in values else {}
    if "watch" in values:
        from gflow.cli.common.watch import watch

        title = "ginfo " + " ".join(words)
        return watch(
            lambda: http.ask("GET", "/info", b"", "text/plain", query | hot_path.terminal()),
            values.get("interval", 2),
            title,
        )
    if "json" not in values:
        query |= hot_path.terminal()
    return http.show("/info", as_json="json" in values, **query)
