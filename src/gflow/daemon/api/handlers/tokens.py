"""Routes for the caller's tokens. Tokens are created and revoked over the Unix socket only."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gflow.daemon.api.permissions import acting_user, check_local
from gflow.daemon.api.request import caller, context_of, read
from gflow.daemon.api.response import answer
from gflow.daemon.api.rlimits import known_limits
from gflow.daemon.auth.tokens import Token
from gflow.errors import Forbidden
from gflow.options.job_options import Option
from gflow.options.values import read as read_option
from gflow.text.gctl import new_token_text, revoked_line, token_table
from gflow.wire.answers.daemon import NewTokenAnswer, RevokedAnswer, TokensAnswer, TokenView
from gflow.wire.encoding import rfc3339
from gflow.wire.requests import RevokeRequest, TokenRequest

_NAME = Option("name", "name", "what it is for")


async def create(request: Request) -> Response:
    """Create a token for the caller. Its text is shown only in this answer."""
    context, (uid, _) = context_of(request), caller(request)
    check_local(request, "tokens are made and revoked on the machine itself")
    if context.settings.is_system and uid == 0:
        raise Forbidden(
            "root cannot have a token: it would give access to the whole machine", hint="make one as yourself"
        )
    wanted = await read(request, TokenRequest)
    name = read_option(_NAME, wanted.name) if wanted.name else ""
    limits = known_limits(request.scope["state"], context.privileged)
    token, text = await context.tokens.make(
        uid, acting_user(request), name, wanted.days, None if limits is None else tuple(sorted(limits))
    )
    data = NewTokenAnswer(text, **msgspec.structs.asdict(_token_view(token)))
    listens = bool(context.settings.listening.port)
    return answer(request, lambda: data, lambda: new_token_text(data, listens=listens), 201)


async def list_tokens(request: Request) -> Response:
    """The caller's tokens; root sees the tokens of all users."""
    found = [_token_view(token) for token in context_of(request).tokens.of(_token_owner(request))]
    return answer(request, lambda: TokensAnswer(found), lambda: token_table(found))


async def revoke(request: Request) -> Response:
    """Revoke a token. It is invalid at once."""
    check_local(request, "tokens are made and revoked on the machine itself")
    wanted = await read(request, RevokeRequest)
    token = await context_of(request).tokens.revoke(_token_owner(request), wanted.id)
    return answer(
        request, lambda: RevokedAnswer(_token_view(token)), lambda: revoked_line(token.id, token.name)
    )


def _token_owner(request: Request) -> int | None:
    """The user whose tokens the caller may list and revoke; None (root) means all users."""
    uid, _ = caller(request)
    return uid or None


def _token_view(token: Token) -> TokenView:
    return TokenView(
        id=token.id,
        name=token.name,
        user=token.user,
        made_at=rfc3339(token.made_at),
        expires_at=rfc3339(token.expires_at),
    )
