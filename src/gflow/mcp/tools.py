"""What every tool needs: its hints for the client, and refusals as people read them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from gflow.client import absent, fast
from gflow.errors import GflowError
from gflow.mcp.foreign_text import contained, own_name

F = TypeVar("F", bound=Callable[..., Any])
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
CHANGES = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)
DESTROYS = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)
MUTATES = "MUTATES scheduler state. "


def add(server: MCPServer[Any], annotations: ToolAnnotations, tools: list[Callable[..., Any]]) -> None:
    """Offer these functions; what they are for is their first words."""
    for tool in tools:
        about = (tool.__doc__ or "").strip()
        text = about if annotations.read_only_hint else MUTATES + about
        server.tool(description=text, annotations=annotations)(refusing(tool))


def refusing(tool: F) -> F:
    """The same tool; a refusal of the daemon's is told in its own words, free text of others is contained."""

    @functools.wraps(tool)
    def told(*args: Any, **named: Any) -> Any:
        try:
            return contained(tool(*args, **named), own_name())
        except GflowError as error:
            raise ToolError(error.message + (f" ({error.hint})" if error.hint else "")) from error
        except ConnectionError as error:
            away = absent.unreachable(fast.getenv)
            raise ToolError(f"{away.message} ({away.hint})") from error

    return told  # type: ignore[return-value]
