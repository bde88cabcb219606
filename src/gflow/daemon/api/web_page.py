"""The web page over TCP: its files, and the exchange of a login code for a session.

The files are the same for all users and hold no data, so they need no session. This lets the session cookie
be SameSite=Strict: a link from elsewhere loads the page without it, and the page sends it with its own
requests. All other requests go to the gate.
"""

from __future__ import annotations

import gzip
import hashlib
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gflow.daemon.api.response import on_error
from gflow.daemon.api.tcp_gate import Gate, check_host
from gflow.daemon.auth.web_sessions import COOKIE, NewSession, WebSessions
from gflow.errors import GflowError, LinkNotValid, NoSuchRoute, TooLarge, WrongType
from gflow.wire.answers.web import SessionAnswer
from gflow.wire.encoding import encode, rfc3339
from gflow.wire.requests import CodeRequest, decode

PREFIX = "/web/"
LOGIN = "/web/session"
FILES = Path(__file__).resolve().parents[2] / "web"
INDEX = "index.html"
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Largest body of a login.
MOST_LOGIN_BYTES = 1024
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
# Of every response over TCP.
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class PageFile(NamedTuple):
    """A file of the page, compressed once."""

    media: str
    etag: str
    packed: bytes


@cache
def page_files() -> dict[str, PageFile]:
    """The files of the page by name."""
    found = {}
    for path in sorted(FILES.glob("*")):
        if path.suffix in MEDIA:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.name] = PageFile(MEDIA[path.suffix], etag, gzip.compress(content, mtime=0))
    return found


class WebPage:
    """ASGI application: the page's files and the login. Other requests go to `gate`."""

    def __init__(self, gate: Gate, sessions: WebSessions, hosts: frozenset[str]) -> None:
        self._gate = gate
        self._sessions = sessions
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            send = _with_headers(send)
        app: ASGIApp = self._gate
        if scope["type"] == "http" and (own := self._own_response(scope)):
            app = own
        await app(scope, receive, send)

    def _own_response(self, scope: Scope) -> ASGIApp | None:
        """The response to a request for the page itself; None: it is a request to the API."""
        method, path = scope["method"], scope["path"]
        if method == "POST" and path == LOGIN:
            return self._log_in
        if method not in ("GET", "HEAD") or not (path == "/" or path.startswith(PREFIX)):
            return None
        headers = Headers(scope=scope)
        if path == "/":
            return None if "authorization" in headers else RedirectResponse(PREFIX, 303)
        return _file_response(path.removeprefix(PREFIX), headers)

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._exchange(request)
        except GflowError as error:
            response = await on_error(request, error)
        response.headers["connection"] = "close"
        response.headers["cache-control"] = "no-store"
        await response(scope, receive, send)

    async def _exchange(self, request: Request) -> Response:
        check_host(request.headers, self._hosts)
        wanted: CodeRequest = decode(await _body(request), CodeRequest)
        made = await self._sessions.exchange(wanted.code)
        if made is None:
            self._gate.charge_stranger(request.client.host if request.client else "?")
            raise LinkNotValid(hint="gflow web makes a new one")
        data = SessionAnswer(
            session=f"{made.session.id}.{made.key}",
            user=made.session.user,
            expires_at=rfc3339(made.session.expires_at),
        )
        response = Response(encode(data), 201, media_type="application/json")
        _set_cookie(response, made, is_secure=request.url.scheme == "https")
        return response


def _set_cookie(response: Response, made: NewSession, *, is_secure: bool) -> None:
    response.set_cookie(
        COOKIE + made.session.id,
        made.cookie,
        max_age=max(1, int(made.session.expires_at - time.time())),
        path="/",
        httponly=True,
        samesite="strict",
        secure=is_secure,
    )


async def _body(request: Request) -> bytes:
    """The body of a login. A body of another type is refused: forms of other sites can send that."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise WrongType("a login must be application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_LOGIN_BYTES:
            raise TooLarge("a login is shorter than this")
    return body


def _file_response(name: str, headers: Headers) -> Response:
    """A file of the page. A name without a suffix is a view of the page, which is drawn by its script."""
    files = page_files()
    file = files.get(name if "." in name else INDEX)
    if file is None:
        text = "This installation of gflow has no web page. In a checkout, `make web` builds it.\n"
        missing = text if not files else f"{NoSuchRoute.__doc__}\n"
        return Response(missing, 404 if files else 503, media_type="text/plain; charset=utf-8")
    cached = {"etag": file.etag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=cached)
    if "gzip" in headers.get("accept-encoding", ""):
        return Response(file.packed, headers=cached | {"content-encoding": "gzip"}, media_type=file.media)
    return Response(gzip.decompress(file.packed), headers=cached, media_type=file.media)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return send_with_headers
