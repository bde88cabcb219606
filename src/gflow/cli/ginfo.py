"""ginfo: the GPUs and the jobs that use them."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.options.commands.ginfo_options import OPTIONS
from gflow.options.job_options import refuse
from gflow.options.parse import parse

ABOUT = """Show the GPUs of this machine: memory, use, and who has each one since when, until
when; which GPUs are reserved, drained or restricted.

On a terminal there is a line for each GPU. Programs that read the output get a
row for idle GPUs, one for each job and one for each reason why GPUs get no
jobs. `ginfo info` is the same as `ginfo --long`."""
EXAMPLES = """ginfo
ginfo -l                # model, memory, load, temperature, jobs, idle since
ginfo -w
ginfo --target gilbreth # partitions of a cluster: nodes, free GPUs, time limits
ginfo --json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if rest and rest != ["info"]:
        refuse(f"ginfo has no command {' '.join(rest)!r}", "ginfo, ginfo -l or ginfo --json")
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("ginfo [options]", ABOUT, OPTIONS, EXAMPLES))
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
