"""gflow mcp: gflow for assistants that speak MCP."""

from __future__ import annotations

import sys

from gflow.errors import Refused, UsageError
from gflow.options.parse import parse
from gflow.options.table import COMMON

ABOUT = """Serve gflow to an assistant over MCP, on standard input and output: tools that look (jobs, GPUs,
logs, why a job waits), that preview, and that change things. It acts as you, with your rights and no more.

Needs the extra: pip install 'gflow[mcp]'."""
EXAMPLES = """gflow mcp serve
claude mcp add gflow -- gflow mcp serve"""


def run(words: list[str]) -> int:
    values, rest = parse(words, COMMON)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow mcp serve", ABOUT, COMMON, EXAMPLES))
        return 0
    if rest != ["serve"]:
        raise UsageError("gflow mcp takes one word: serve")
    try:
        from gflow.mcp.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "pydantic"):
            raise
        raise Refused("MCP needs its own packages", hint="pip install 'gflow[mcp]'") from None
    serve()
    return 0
