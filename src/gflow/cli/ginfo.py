"""ginfo: the GPUs and who has them."""

from __future__ import annotations

import sys

from gflow.cli import call
from gflow.errors import UsageError
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON

OPTIONS = (JSON, *COMMON)
ABOUT = "Show the GPUs of this machine and who has them."
EXAMPLES = """ginfo
ginfo --json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if rest and rest != ["info"]:
        raise UsageError(f"ginfo has no command {' '.join(rest)!r}", hint="ginfo, or ginfo --json")
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("ginfo [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    return call.show("/info", as_json="json" in values)
