"""gflow mcp: serve gflow to assistants over MCP."""

from __future__ import annotations

import sys

from gflow.errors import Refused, UsageError
from gflow.options.job_options import COMMON
from gflow.options.parse import parse

ABOUT = """Serve gflow to an assistant over MCP, on standard input and output: tools that show (jobs, GPUs,
logs, why a job waits), preview and change things. The server acts as you and has exactly your permissions.

Needs the extra mcp. Without it, the command prints how to install it."""
EXAMPLES = """gflow mcp serve
claude mcp add gflow -- gflow mcp serve"""


def run(words: list[str]) -> int:
    values, rest = parse(words, COMMON)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow mcp serve", ABOUT, COMMON, EXAMPLES))
        return 0
    if rest != ["serve"]:
        raise UsageError("gflow mcp takes one argument: serve")
    try:
        from gflow.mcp.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "pydantic"):
            raise
        from gflow.install_hint import install_hint

        raise Refused("gflow mcp needs additional packages", hint=install_hint("mcp")) from None
    serve()
    return 0
