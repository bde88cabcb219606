"""The row type of the route table: one route of the API with everything that is declared about it."""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from gflow.daemon.api.permissions import Handler, Permission, enforce
from gflow.wire.queries import Query

JSON, TEXT, STREAM = "application/json", "text/plain; charset=utf-8", "text/event-stream"


class ApiRoute(Route):
    """A route that checks its permission before it calls its handler.

    answer: the type of the answer; a tuple means one of several, `()` any JSON object, None plain text.
    body: the type of the request's body; None if it has none.
    query: the type of the query. A name that it does not have is refused.
    status: the status of success.
    has_text: whether `Accept: text/plain` gets text.
    media: the media type of the answer.

    OpenAPI takes the description of the operation from the docstring of the handler.
    """

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        permission: Permission,
        answer: Any,
        *,
        body: Any = None,
        query: type[Query] = Query,
        status: int = 200,
        has_text: bool = True,
        media: str = JSON,
    ) -> None:
        super().__init__(path, enforce(permission, handler), methods=[method])
        self.method = method
        self.permission = permission
        self.answer = answer
        self.body = body
        self.query = query
        self.status = status
        self.has_text = has_text
        self.media = media
