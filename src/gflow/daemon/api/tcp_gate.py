"""Authentication of TCP requests: Host header, Origin header, bearer token or web session, request rate.

The caller acts as the user of the token or session. A token has no groups: operator and root rights need the
Unix socket. A session has the groups with which it was made there (see `auth.web_sessions`).
"""

from __future__ import annotations

import time
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from gflow.daemon.api.connections import network_of
from gflow.daemon.api.response import on_error
from gflow.daemon.auth.tokens import Token, Tokens
from gflow.daemon.auth.users import user_name, why_unusable
from gflow.daemon.auth.web_sessions import HEADER, WebSession, WebSessions
from gflow.errors import Forbidden, GflowError, TooMany, Unauthorized

# Token bucket per caller: requests per second, size of the bucket, cost of a wrong bearer token.
RATE, BURST, WRONG = 50.0, 200.0, 20.0
# Most callers with a bucket; the least recently seen is dropped.
MOST_CALLERS = 10_000
BEARER = "bearer "


class TokenBuckets:
    """One token bucket per caller: a uid, or a network without a valid token."""

    def __init__(self) -> None:
        self._left: dict[str | int, tuple[float, float]] = {}

    def take(self, caller: str | int, cost: float = 1.0) -> None:
        """Charge one request to the caller. Raises TooMany if its bucket is empty."""
        now = time.monotonic()
        left, at = self._left.get(caller, (BURST, now))
        left = min(BURST, left + (now - at) * RATE)
        if left < 1:
            raise TooMany("too many requests", hint="wait a moment")
        self._left.pop(caller, None)  # reinsert: the most recent is last
        self._left[caller] = left - cost, now
        if len(self._left) > MOST_CALLERS:
            del self._left[next(iter(self._left))]


class Gate:
    """ASGI middleware that admits authenticated requests to `app`."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        sessions: WebSessions,
        hosts: frozenset[str],
        *,
        is_system: bool = False,
    ) -> None:
        self._app = app
        self._is_system = is_system
        self._tokens = tokens
        self._sessions = sessions
        self._hosts = hosts
        self._buckets = TokenBuckets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope["state"] = await self._authenticate(scope, Headers(scope=scope))
        except GflowError as error:
            response = await on_error(Request(scope), error)
            response.headers["connection"] = "close"  # the rest of the connection is not read
            if isinstance(error, Unauthorized):
                response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope, headers: Headers) -> dict[str, Any]:
        """Authenticate the request and return its `scope["state"]`. Raises a GflowError otherwise."""
        check_host(headers, self._hosts)
        address = str((scope.get("client") or ("?",))[0])
        found = await self._identify(headers)
        if found is None:
            self.charge_stranger(address)
            raise Unauthorized
        self._buckets.take(found.uid)
        if not scope["state"]["ticket"].recognise(found.uid):
            raise TooMany("you have too many requests open at once", hint="wait for some of them to end")
        if self._is_system and (why := why_unusable(found.uid, found.user)):
            raise Forbidden(why, hint="ask the administrator of the machine")
        return {
            "uid": found.uid,
            "pid": 0,
            "groups": found.groups,
            "origin": f"{found.label} from {address}",
            "limits": found.limits,
            "session": found if isinstance(found, WebSession) else None,
        }

    async def _identify(self, headers: Headers) -> Token | WebSession | None:
        """The token or the session that the request shows; None if there is none, or it is not valid."""
        if shown := headers.get(HEADER):
            return self._sessions.find(shown, cookie_parser(headers.get("cookie", "")))
        token = self._tokens.find(_bearer(headers))
        if token is not None and user_name(token.uid) != token.user:
            await self._tokens.revoke_orphans()
            return None
        return token

    def charge_stranger(self, address: str) -> None:
        """Charge a wrong secret to the network that it came from. Raises TooMany above its rate."""
        self._buckets.take(network_of(address), WRONG)


def check_host(headers: Headers, known: frozenset[str]) -> None:
    """Refuse a request for another host name (DNS rebinding), and one of a page of another site."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or _host_name(hosts[0]) not in known:
        raise Forbidden(
            f"this gflow daemon is not known as {' '.join(hosts)[:60]!a}",
            hint="daemon.allowed_hosts sets its names",
        )
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != hosts[0]:
        raise Forbidden("web pages of other sites may not send requests to this gflow daemon")


def _bearer(headers: Headers) -> str:
    given = headers.getlist("authorization")
    if len(given) != 1 or not given[0].lower().startswith(BEARER):
        return ""
    return given[0][len(BEARER) :].strip()


def _host_name(host: str) -> str:
    """The host name without its port; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
