"""Answers about the web page: links, sessions, the caller."""

from __future__ import annotations

import msgspec


class LinkAnswer(msgspec.Struct, kw_only=True):
    """A link that logs in once, until `expires_at`. The code is in the fragment of the URL."""

    url: str
    host: str
    port: int
    user: str
    operator: bool
    expires_at: str


class SessionAnswer(msgspec.Struct, kw_only=True):
    """A new session: the value of the header X-Gflow-Session. Its other secret is a cookie."""

    session: str
    user: str
    expires_at: str


class LoggedOutAnswer(msgspec.Struct):
    """How many sessions of the web page ended."""

    ended: int


class CallerAnswer(msgspec.Struct, kw_only=True):
    """The caller: name, rights, home, and the machine of the daemon."""

    user: str
    operator: bool
    home: str
    host: str
    system: bool
    version: str
    # When the session of the web page ends; null: the caller uses the Unix socket or a token.
    session_ends_at: str | None
