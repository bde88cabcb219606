"""gflow api: print the OpenAPI description of the HTTP API."""

from __future__ import annotations

import sys

from gflow.options.job_options import COMMON
from gflow.options.parse import parse

ABOUT = """Print the description of gflow's HTTP API (OpenAPI 3.1): its routes, requests and responses.

No daemon is needed. A running daemon serves the same document at /openapi.json."""
EXAMPLES = """gflow api > gflow.json
curl http://gflow/openapi.json --unix-socket $(cat ~/.local/share/gflow/address)"""


def run(words: list[str]) -> int:
    values, rest = parse(words, COMMON)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow api", ABOUT, COMMON, EXAMPLES))
        return 0
    if rest:
        from gflow.errors import UsageError

        raise UsageError(f"gflow api takes no arguments, such as {rest[0]!a:.60}")
    from gflow.daemon.api.routes import document

    sys.stdout.write(document().decode() + "\n")
    return 0
