"""What a request that comes through a port has to pass: the right name, no foreign page, a token.

Whoever passes is the token's person, with the rights of any person: operators and root govern the
machine from the machine itself.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gflow.daemon.api.connections import network_of
from gflow.daemon.api.response import on_error
from gflow.daemon.auth.tokens import Token, Tokens
from gflow.daemon.auth.users import unusable, user_name
from gflow.errors import Forbidden, GflowError, TooMany, Unauthorized

# Requests a second that one person may send on average, and how many at once; what a wrong token counts for.
RATE, BURST, WRONG = 50.0, 200.0, 20.0
# Of how many callers the rate is kept.
MOST_CALLERS = 10_000
BEARER = "bearer "


class Rates:
    """Buckets that fill with time, one for each caller."""

    def __init__(self) -> None:
        self._left: dict[str | int, tuple[float, float]] = {}

    def take(self, who: str | int, cost: float = 1.0) -> None:
        now = time.monotonic()
        left, at = self._left.get(who, (BURST, now))
        left = min(BURST, left + (now - at) * RATE)
        if left < 1:
            raise TooMany("you ask too often", hint="wait a moment")
        self._left.pop(who, None)  # the latest is last
        self._left[who] = left - cost, now
        if len(self._left) > MOST_CALLERS:
            del self._left[next(iter(self._left))]


class Gate:
    """The app behind the gate."""

    def __init__(
        self, app: ASGIApp, tokens: Tokens, hosts: frozenset[str], *, is_system: bool = False
    ) -> None:
        self._app = app
        self._is_system = is_system
        self._tokens = tokens
        self._hosts = hosts
        self._rates = Rates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope["state"] = await self._admitted(scope, Headers(scope=scope))
        except GflowError as error:
            response = await on_error(Request(scope), error)
            response.headers["connection"] = "close"  # what else it sends is not read
            if isinstance(error, Unauthorized):
                response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _admitted(self, scope: Scope, headers: Headers) -> dict[str, Any]:
        """Who calls, or a refusal."""
        self._check_host(headers)
        address = str((scope.get("client") or ("?",))[0])
        token = self._tokens.find(_bearer(headers))
        if token is None or user_name(token.uid) != token.user:
            self._rates.take(network_of(address), WRONG)
            if token is not None:
                await self._tokens.revoke_orphans()
            raise Unauthorized
        self._rates.take(token.uid)
        if not scope["state"]["ticket"].recognise(token.uid):
            raise TooMany("you have too many requests open at once", hint="wait for some of them to end")
        if self._is_system and (why := unusable(token.uid, token.user)):
            raise Forbidden(why, hint="ask the administrator of the machine")
        return {
            "uid": token.uid,
            "pid": 0,
            "groups": frozenset(),
            "origin": _origin(token, address),
            "limits": token.limits,
        }

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name(hosts[0]) not in self._hosts:
            raise Forbidden(
                f"this gflow daemon is not known as {' '.join(hosts)[:60]!a}",
                hint="names of it are set with daemon.allowed_hosts",
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != hosts[0]:
            raise Forbidden("pages of other sites may not ask this gflow daemon anything")


def _origin(token: Token, address: str) -> str:
    """Where a request came from, for the story of a job."""
    return f"token {token.id} from {address}"


def _bearer(headers: Headers) -> str:
    given = headers.getlist("authorization")
    if len(given) != 1 or not given[0].lower().startswith(BEARER):
        return ""
    return given[0][len(BEARER) :].strip()


def _name(host: str) -> str:
    """A host without its port; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
