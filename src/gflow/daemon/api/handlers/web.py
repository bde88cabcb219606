"""Routes for the web page: links that log in, the end of sessions, and the caller."""

from __future__ import annotations

import os

from starlette.requests import Request
from starlette.responses import Response

from gflow import __version__
from gflow.daemon.api.permissions import acting_user, check_local, is_operator
from gflow.daemon.api.request import caller, context_of, read
from gflow.daemon.api.response import answer
from gflow.daemon.api.rlimits import known_limits
from gflow.daemon.auth.users import home_of
from gflow.daemon.auth.web_sessions import Login, check_may_log_in
from gflow.daemon.process.web_listener import url_of
from gflow.errors import Forbidden
from gflow.wire.answers.web import CallerAnswer, LinkAnswer, LoggedOutAnswer
from gflow.wire.encoding import rfc3339
from gflow.wire.requests import LinkRequest, LogoutRequest


async def make_link(request: Request) -> Response:
    """Make a link that logs a browser in as the caller: once, within five minutes."""
    check_local(request, "links to the web page are made on the machine itself")
    context, (uid, _) = context_of(request), caller(request)
    check_may_log_in(uid, is_system=context.settings.is_system)
    wanted = await read(request, LinkRequest)
    if wanted.operator and not is_operator(request):
        group = context.settings.operators
        raise Forbidden("you are not an operator", hint=f"operators are root and the group {group}")
    limits = known_limits(request.scope["state"], context.privileged)
    login = Login(
        uid=uid,
        user=acting_user(request),
        groups=request.scope["state"]["groups"] if wanted.operator else frozenset(),
        limits=None if limits is None else tuple(sorted(limits)),
    )
    at = await context.web.open()
    code, ends_at = context.web.sessions.make_code(login)
    base, host = url_of(at)
    data = LinkAnswer(
        url=f"{base}#login={code}",
        host=host,
        port=at.port,
        user=login.user,
        operator=is_operator(request) and (wanted.operator or not context.settings.is_system),
        expires_at=rfc3339(ends_at),
    )
    return answer(request, lambda: data, lambda: f"{data.url}\n", 201)


async def log_out(request: Request) -> Response:
    """End the caller's sessions of the web page, or with `this` only the one of the request."""
    wanted, (uid, _) = await read(request, LogoutRequest), caller(request)
    session = request.scope["state"].get("session")
    only = session.id if wanted.this and session is not None else ""
    ended = await context_of(request).web.sessions.end(uid, only)
    return answer(request, lambda: LoggedOutAnswer(ended), lambda: _ended_line(ended))


def _ended_line(ended: int) -> str:
    return f"{ended or 'no'} session{'' if ended == 1 else 's'} of the web page ended\n"


async def show_caller(request: Request) -> Response:
    """The caller as the daemon knows it, and the machine."""
    settings, (uid, _) = context_of(request).settings, caller(request)
    session = request.scope["state"].get("session")
    data = CallerAnswer(
        user=acting_user(request),
        operator=is_operator(request),
        home=home_of(uid) if settings.is_system else os.path.expanduser("~"),
        host=os.uname().nodename,
        system=settings.is_system,
        version=__version__,
        session_ends_at=rfc3339(session.expires_at) if session else None,
    )
    return answer(request, lambda: data, lambda: f"{data.user}\n")
