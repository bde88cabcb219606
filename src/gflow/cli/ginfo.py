"""ginfo: the GPUs and who has them."""

from __future__ import annotations

import sys

from gflow.cli import call
from gflow.errors import UsageError
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON, Option

LONG = Option("long", "flag", "all about each GPU: memory, use, heat, jobs, other processes", short="l")
OPTIONS = (LONG, JSON, *COMMON)
ABOUT = "Show the GPUs of this machine and who has them."
EXAMPLES = """ginfo
ginfo -l
ginfo --json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if rest and rest != ["info"]:
        raise UsageError(f"ginfo has no command {' '.join(rest)!r}", hint="ginfo, ginfo -l or ginfo --json")
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("ginfo [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    path = "/info?long=1" if rest or "long" in values else "/info"
    return call.show(path, as_json="json" in values)
