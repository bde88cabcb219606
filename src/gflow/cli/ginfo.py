"""ginfo: the GPUs and the jobs that use them."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.options.commands.ginfo_options import OPTIONS
from gflow.options.job_options import refuse
from gflow.options.parse import parse


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if rest and rest != ["info"]:
        refuse(f"ginfo has no command {' '.join(rest)!r}", "ginfo, ginfo -l or ginfo --json")
    if "help" in values:
        from gflow.options.commands.help_pages import help_page

        sys.stdout.write(help_page("ginfo"))
        return 0
    query = {"long": "1"} if rest or "long" in values else {}
    path = f"/targets/{http.quote(values['target'])}/partitions" if "target" in values else "/info"
    if "target" in values and query:
        refuse("--target and --long cannot be combined", "ginfo --target NAME")
    if "watch" in values:
        from gflow.cli.common.watch import watch

        title = "ginfo " + " ".join(words)
        return watch(
            lambda: http.ask("GET", path, b"", "text/plain", query | hot_path.terminal()),
            values.get("interval", 2),
            title,
        )
    if "json" not in values:
        query |= hot_path.terminal()
    return http.show(path, as_json="json" in values, **query)
