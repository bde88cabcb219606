"""What gctl token says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gflow.errors import clean
from gflow.text.table import table

DAY = len("2026-01-31")


def made_text(text: str, token: Mapping[str, Any], *, listens: bool) -> str:
    """The token alone on the first line, for a script to read."""
    lines = [text, f"It is good until {token['expires_at'][:DAY]} and is not shown again: keep it safe."]
    if not listens:
        lines.append("(The daemon listens on no port yet: set daemon.port.)")
    return "".join(line + "\n" for line in lines)


def token_table(tokens: Sequence[Mapping[str, Any]]) -> str:
    if not tokens:
        return "No tokens.\n"
    rows = [
        (one["id"], one["name"], one["user"], one["made_at"][:DAY], one["expires_at"][:DAY]) for one in tokens
    ]
    return table(("ID", "NAME", "USER", "MADE", "EXPIRES"), rows)


def revoked_line(number: str, name: str) -> str:
    return f"Token {number}{f' ({clean(name)})' if name else ''} is good for nothing from now on.\n"
