"""The routes, in one list."""

from __future__ import annotations

import os
from functools import cache

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gflow.daemon.api.handlers import (
    admin,
    events,
    gpu_usage,
    gpus,
    jobs,
    metrics,
    modify,
    queue,
    quotas,
    stats,
    status,
    submit,
    terminals,
    tokens,
)
from gflow.daemon.api.openapi import described
from gflow.daemon.api.permissions import guarded
from gflow.daemon.api.response import on_error
from gflow.daemon.api.shapes import JSON
from gflow.daemon.auth.users import user_name
from gflow.daemon.context import Context
from gflow.errors import Forbidden, GflowError, NoSuchRoute, WrongMethod
from gflow.wire.views import encode


async def show_description(_request: Request) -> Response:
    """This description of the API (OpenAPI 3.1)."""
    return Response(document(), media_type=JSON)


@cache
def document() -> bytes:
    """The description of the API, as JSON."""
    return encode(described(ROUTES))


ROUTES = [
    Route("/jobs", submit.submit, methods=["POST"]),
    Route("/jobs", queue.listing, methods=["GET"]),
    Route("/jobs/redo", submit.redo, methods=["POST"]),
    Route("/jobs/cancel", modify.cancel, methods=["POST"]),
    Route("/jobs/hold", modify.hold, methods=["POST"]),
    Route("/jobs/release", modify.release, methods=["POST"]),
    Route("/jobs/update", modify.update, methods=["POST"]),
    Route("/jobs/{job}", jobs.show, methods=["GET"]),
    Route("/jobs/{job}/wait", jobs.wait, methods=["GET"]),
    Route("/jobs/{job}/log", jobs.log_place, methods=["GET"]),
    Route("/jobs/{job}/terminal", terminals.place, methods=["GET"]),
    Route("/jobs/{job}/exec", terminals.execute, methods=["POST"]),
    Route("/jobs/{job}/history", jobs.history, methods=["GET"]),
    Route("/jobs/{job}/why", jobs.why, methods=["GET"]),
    Route("/jobs/{job}/usage", gpu_usage.usage, methods=["GET"]),
    Route("/events", events.stream, methods=["GET"]),
    Route("/drain", admin.drain, methods=["POST"]),
    Route("/gpus", admin.gpus, methods=["GET"]),
    Route("/gpus", admin.set_gpus, methods=["POST"]),
    Route("/limits", admin.set_limit, methods=["POST"]),
    Route("/quotas", quotas.quotas, methods=["GET"]),
    Route("/quotas", quotas.set_quota, methods=["PUT"]),
    Route("/reservations", quotas.reservations, methods=["GET"]),
    Route("/reservations", quotas.reserve, methods=["POST"]),
    Route("/reservations/{id}", quotas.reservation, methods=["GET"]),
    Route("/reservations/{id}", quotas.unreserve, methods=["DELETE"]),
    Route("/gpu-processes", gpus.list_ignored, methods=["GET"]),
    Route("/gpu-processes/ignore", gpus.ignore, methods=["POST"]),
    Route("/gpu-processes/unignore", gpus.unignore, methods=["POST"]),
    Route("/backup", status.backup, methods=["POST"]),
    Route("/notifications/test", admin.test_notifications, methods=["POST"]),
    Route("/tokens", tokens.make, methods=["POST"]),
    Route("/tokens", tokens.listing, methods=["GET"]),
    Route("/tokens/revoke", tokens.revoke, methods=["POST"]),
    Route("/stats", stats.show, methods=["GET"]),
    Route("/info", status.info, methods=["GET"]),
    Route("/status", status.status, methods=["GET"]),
    Route("/health", status.health, methods=["GET"]),
    Route("/metrics", metrics.metrics, methods=["GET"]),
    Route("/openapi.json", show_description, methods=["GET"]),
]


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the router refuses, in the shape of every other refusal."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        refusal = await on_error(request, WrongMethod(f"{request.url.path} does not take {request.method}"))
        refusal.headers["allow"] = ", ".join(sorted(_methods_at(request)))
        return refusal
    return await on_error(request, NoSuchRoute(f"there is nothing at {request.url.path!a:.80}"))


def _methods_at(request: Request) -> set[str]:
    """What this address does take."""
    return {
        method
        for route in ROUTES
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


def make_app(context: Context) -> ASGIApp:
    routes = [guarded(route) for route in ROUTES]
    app = Starlette(routes=routes, exception_handlers={GflowError: on_error, HTTPException: _on_http_error})
    app.state.context = context
    return app if context.settings.is_system else _OwnUserOnly(app)


class _OwnUserOnly:
    """A user's daemon serves that user (and root, who could read its memory anyway)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["state"]["uid"] not in (os.getuid(), 0):
            owner = user_name(os.getuid())
            response = await on_error(Request(scope), Forbidden(f"this gflow daemon serves {owner} only"))
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)
