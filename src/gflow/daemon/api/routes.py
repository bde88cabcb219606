"""The route table: method, path, handler, permission, answer, body, query and status of every route.

The permission checks, the OpenAPI document and docs/reference/api.md derive from it.
The fields of a row are explained at `ApiRoute`.
"""

from __future__ import annotations

import os
from functools import cache

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gflow.daemon.api.api_route import JSON, STREAM, ApiRoute
from gflow.daemon.api.handlers import (
    admin,
    cluster_jobs,
    clusters,
    command,
    dependencies,
    events,
    gpu_events,
    gpu_memory,
    gpu_usage,
    gpus,
    groups,
    job_output,
    jobs,
    metrics,
    modify,
    overview,
    queue,
    quotas,
    stats,
    status,
    submit,
    terminals,
    tokens,
    web,
)
from gflow.daemon.api.openapi import describe_api
from gflow.daemon.api.permissions import Permission
from gflow.daemon.api.response import on_error
from gflow.daemon.auth.users import user_name
from gflow.daemon.context import Context
from gflow.errors import Forbidden, GflowError, NoSuchRoute, WrongMethod
from gflow.text.prometheus import MEDIA as METRICS_MEDIA
from gflow.wire import queries, requests
from gflow.wire.answers.daemon import (
    BackupAnswer,
    ClusterJobsAnswer,
    DeliveriesAnswer,
    HealthAnswer,
    NewTokenAnswer,
    PartitionsAnswer,
    RevokedAnswer,
    StatusAnswer,
    TargetsAnswer,
    TokensAnswer,
)
from gflow.wire.answers.event_stream import Connected, Happening, Missed, Readings
from gflow.wire.answers.gpu_memory import GpuMemoryAnswer
from gflow.wire.answers.gpus import (
    AllowedAnswer,
    DrainAnswer,
    GpuEventsAnswer,
    GpuHistoryAnswer,
    GpuLinesAnswer,
    IgnoredAnswer,
    IgnoredNowAnswer,
    InfoAnswer,
)
from gflow.wire.answers.groups import GroupAnswer, RowsAnswer, ShownJobsAnswer
from gflow.wire.answers.job_details import (
    DependenciesAnswer,
    DiagnosisAnswer,
    EnvironmentAnswer,
    ExecAnswer,
    HistoryAnswer,
    JobFilesAnswer,
    LogAnswer,
    OutputAnswer,
    ProfileFolderAnswer,
    ProgressAnswer,
    SearchAnswer,
    StartsAnswer,
    TerminalAnswer,
    UsageAnswer,
    WhyAnswer,
)
from gflow.wire.answers.jobs import DryCancelAnswer, DryRunAnswer, JobsAnswer
from gflow.wire.answers.overview import OverviewAnswer
from gflow.wire.answers.quotas import (
    LimitAnswer,
    QuotaAnswer,
    QuotasAnswer,
    ReservationAnswer,
    ReservationsAnswer,
)
from gflow.wire.answers.results import ResultsAnswer
from gflow.wire.answers.statistics import PredictionsAnswer, StatsAnswer
from gflow.wire.answers.usage_days import UsageDaysAnswer
from gflow.wire.answers.web import CallerAnswer, LinkAnswer, LoggedOutAnswer
from gflow.wire.encoding import encode


async def show_description(_request: Request) -> Response:
    """The OpenAPI 3.1 description of this API."""
    return Response(document(), media_type=JSON)


@cache
def document() -> bytes:
    """The OpenAPI document as JSON. Cached: it depends on nothing but the code."""
    return encode(describe_api(ROUTES))


ROUTES = [
    ApiRoute("POST", "/command", command.run, Permission.ANYONE,
             None, body=bytes, has_text=False, media="text/plain"),
    ApiRoute("POST", "/jobs", submit.submit, Permission.ANYONE,
             (JobsAnswer, DryRunAnswer), body=requests.SubmitRequest,
             query=queries.SubmitQuery, status=201),
    ApiRoute("GET", "/jobs", queue.list_jobs, Permission.ANYONE,
             (JobsAnswer, RowsAnswer, ResultsAnswer), query=queries.JobsQuery),
    ApiRoute("POST", "/jobs/redo", submit.redo, Permission.OWNER_ONLY,
             JobsAnswer, body=requests.RedoRequest, query=queries.SubmitQuery, status=201),
    ApiRoute("POST", "/jobs/cancel", modify.cancel, Permission.OWNER_OR_OPERATOR,
             (JobsAnswer, DryCancelAnswer), body=requests.CancelRequest),
    ApiRoute("POST", "/jobs/signal", modify.send_signal, Permission.OWNER_OR_OPERATOR,
             JobsAnswer, body=requests.SignalRequest),
    ApiRoute("POST", "/jobs/hold", modify.hold, Permission.OWNER_OR_OPERATOR,
             JobsAnswer, body=requests.HoldRequest),
    ApiRoute("POST", "/jobs/release", modify.release, Permission.OWNER_OR_OPERATOR,
             JobsAnswer, body=requests.ReleaseRequest),
    ApiRoute("POST", "/jobs/update", modify.update, Permission.OWNER_OR_OPERATOR,
             JobsAnswer, body=requests.UpdateRequest),
    ApiRoute("GET", "/jobs/{job}", jobs.show, Permission.ANYONE, ShownJobsAnswer, query=queries.ShowQuery),
    ApiRoute("GET", "/jobs/{job}/wait", jobs.wait, Permission.ANYONE, JobsAnswer),
    ApiRoute("GET", "/jobs/{job}/log", jobs.show_log_path, Permission.OWNER, LogAnswer),
    ApiRoute("GET", "/jobs/{job}/output", job_output.show_output, Permission.OWNER,
             OutputAnswer, query=queries.OutputQuery),
    ApiRoute("GET", "/jobs/{job}/output/stream", job_output.stream_output, Permission.OWNER,
             OutputAnswer, query=queries.OutputStreamQuery, has_text=False, media=STREAM),
    ApiRoute("GET", "/jobs/{job}/environment", jobs.show_environment, Permission.OWNER, EnvironmentAnswer),
    ApiRoute("GET", "/jobs/{job}/output/search", job_output.search_output, Permission.OWNER,
             SearchAnswer, query=queries.SearchQuery),
    ApiRoute("GET", "/jobs/{job}/diagnosis", job_output.show_diagnosis, Permission.ANYONE, DiagnosisAnswer),
    ApiRoute("GET", "/jobs/{job}/terminal", terminals.show_path, Permission.OWNER, TerminalAnswer),
    ApiRoute("GET", "/jobs/{job}/profile", terminals.show_profile_folder, Permission.OWNER,
             ProfileFolderAnswer),
    ApiRoute("GET", "/jobs/{job}/files", clusters.show_files, Permission.OWNER, JobFilesAnswer),
    ApiRoute("POST", "/jobs/{job}/exec", terminals.execute, Permission.OWNER,
             ExecAnswer, body=requests.ExecRequest, status=201),
    ApiRoute("GET", "/jobs/{job}/history", jobs.show_history, Permission.OWNER, HistoryAnswer),
    ApiRoute("GET", "/jobs/{job}/why", jobs.explain_wait, Permission.ANYONE, WhyAnswer),
    ApiRoute("GET", "/jobs/{job}/dependencies", dependencies.show_dependencies, Permission.ANYONE,
             DependenciesAnswer),
    ApiRoute("GET", "/jobs/{job}/usage", gpu_usage.show_usage, Permission.ANYONE,
             UsageAnswer, query=queries.UsageQuery),
    ApiRoute("GET", "/groups/{group}", groups.show_group, Permission.ANYONE,
             GroupAnswer, query=queries.ShowQuery),
    ApiRoute("GET", "/jobs/{job}/progress", gpu_usage.show_progress, Permission.OWNER, ProgressAnswer),
    ApiRoute("GET", "/targets", clusters.list_targets, Permission.ANYONE, TargetsAnswer),
    ApiRoute("GET", "/targets/{target}/jobs", cluster_jobs.list_cluster_jobs, Permission.SELF,
             ClusterJobsAnswer, query=queries.ClusterJobsQuery),
    ApiRoute("GET", "/targets/{target}/partitions", cluster_jobs.list_partitions, Permission.SELF,
             PartitionsAnswer, query=queries.PartitionsQuery),
    ApiRoute("GET", "/starts", queue.list_starts, Permission.ANYONE,
             StartsAnswer, query=queries.StartsQuery),
    ApiRoute("GET", "/events", events.stream, Permission.ANYONE,
             (Happening, Connected, Missed, Readings), query=queries.EventsQuery,
             has_text=False, media=STREAM),
    ApiRoute("POST", "/drain", admin.drain, Permission.OPERATOR,
             DrainAnswer, body=requests.DrainRequest),
    ApiRoute("GET", "/gpus", admin.list_gpus, Permission.ANYONE, GpuLinesAnswer),
    ApiRoute("GET", "/gpus/history", gpu_usage.show_gpu_history, Permission.ANYONE,
             GpuHistoryAnswer, query=queries.GpuHistoryQuery),
    ApiRoute("GET", "/gpus/memory", gpu_memory.list_processes, Permission.ANYONE,
             GpuMemoryAnswer, query=queries.GpuMemoryQuery),
    ApiRoute("GET", "/gpus/events", gpu_events.list_events, Permission.ANYONE,
             GpuEventsAnswer, query=queries.GpuEventsQuery),
    ApiRoute("POST", "/gpus", admin.set_gpus, Permission.OPERATOR,
             AllowedAnswer, body=requests.GpusRequest),
    ApiRoute("POST", "/limits", admin.set_limit, Permission.OWNER_OR_OPERATOR,
             LimitAnswer, body=requests.LimitRequest),
    ApiRoute("GET", "/quotas", quotas.list_quotas, Permission.ANYONE, QuotasAnswer),
    ApiRoute("PUT", "/quotas", quotas.set_quota, Permission.OPERATOR,
             QuotaAnswer, body=requests.QuotaRequest),
    ApiRoute("GET", "/reservations", quotas.list_reservations, Permission.ANYONE,
             ReservationsAnswer, query=queries.ReservationsQuery),
    ApiRoute("POST", "/reservations", quotas.reserve, Permission.OPERATOR,
             ReservationAnswer, body=requests.ReservationRequest, status=201),
    ApiRoute("GET", "/reservations/{id}", quotas.show_reservation, Permission.ANYONE,
             ReservationAnswer),
    ApiRoute("PATCH", "/reservations/{id}", quotas.change_reservation, Permission.OPERATOR,
             ReservationAnswer, body=requests.ReservationChange),
    ApiRoute("DELETE", "/reservations/{id}", quotas.cancel_reservation, Permission.OPERATOR,
             ReservationAnswer),
    ApiRoute("GET", "/gpu-processes", gpus.list_ignored, Permission.ANYONE, IgnoredAnswer),
    ApiRoute("POST", "/gpu-processes/ignore", gpus.ignore, Permission.OPERATOR,
             IgnoredNowAnswer, body=requests.GpuProcess),
    ApiRoute("POST", "/gpu-processes/unignore", gpus.unignore, Permission.OPERATOR,
             IgnoredNowAnswer, body=requests.GpuProcess),
    ApiRoute("POST", "/backup", status.backup, Permission.OPERATOR, BackupAnswer),
    ApiRoute("POST", "/notifications/test", admin.test_notifications, Permission.OPERATOR,
             DeliveriesAnswer),
    ApiRoute("POST", "/tokens", tokens.create, Permission.NOT_ROOT,
             NewTokenAnswer, body=requests.TokenRequest, status=201),
    ApiRoute("GET", "/tokens", tokens.list_tokens, Permission.SELF, TokensAnswer),
    ApiRoute("POST", "/tokens/revoke", tokens.revoke, Permission.SELF,
             RevokedAnswer, body=requests.RevokeRequest),
    ApiRoute("POST", "/web/links", web.make_link, Permission.NOT_ROOT,
             LinkAnswer, body=requests.LinkRequest, status=201),
    ApiRoute("POST", "/web/logout", web.log_out, Permission.SELF,
             LoggedOutAnswer, body=requests.LogoutRequest),
    ApiRoute("GET", "/me", web.show_caller, Permission.ANYONE, CallerAnswer),
    ApiRoute("GET", "/stats", stats.show, Permission.ANYONE,
             (StatsAnswer, PredictionsAnswer), query=queries.StatsQuery),
    ApiRoute("GET", "/stats/days", stats.show_days, Permission.ANYONE,
             UsageDaysAnswer, query=queries.UsageDaysQuery),
    ApiRoute("GET", "/info", status.show_info, Permission.ANYONE,
             InfoAnswer, query=queries.InfoQuery),
    ApiRoute("GET", "/overview", overview.show_overview, Permission.ANYONE,
             OverviewAnswer, query=queries.OverviewQuery),
    ApiRoute("GET", "/status", status.show_status, Permission.ANYONE, StatusAnswer),
    ApiRoute("GET", "/health", status.show_health, Permission.ANYONE, HealthAnswer),
    ApiRoute("GET", "/metrics", metrics.show_metrics, Permission.ANYONE,
             None, has_text=False, media=METRICS_MEDIA),
    ApiRoute("GET", "/openapi.json", show_description, Permission.ANYONE, (), has_text=False),
]  # fmt: skip


class _Routes(Router):
    """Finds a route without parameters by its path, instead of trying the routes one after another."""

    exact = {(route.method, route.path): route for route in ROUTES if "{" not in route.path}

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.exact.get((scope.get("method", ""), scope["path"]))
        if route is None:
            await super().app(scope, receive, send)
        else:
            scope.update(router=self, route=route, endpoint=route.endpoint, path_params={})
            await route.handle(scope, receive, send)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answer an error of the router (404, 405) with a problem document, as every other refusal."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        refusal = await on_error(request, WrongMethod(f"{request.url.path} does not take {request.method}"))
        refusal.headers["allow"] = ", ".join(sorted(_methods_at(request)))
        return refusal
    return await on_error(request, NoSuchRoute(f"there is nothing at {request.url.path!a:.80}"))


def _methods_at(request: Request) -> set[str]:
    """Methods that the path of the request accepts, for the header Allow."""
    return {
        method
        for route in ROUTES
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


def make_app(context: Context) -> ASGIApp:
    """Make the ASGI application of the daemon. In user mode it serves the daemon's owner and root only."""
    handlers = {GflowError: on_error, HTTPException: _on_http_error}
    app = Starlette(exception_handlers=handlers)
    app.router = _Routes(ROUTES)
    app.state.context = context
    return app if context.settings.is_system else _OwnUserOnly(app)


class _OwnUserOnly:
    """User mode: refuse all callers but the daemon's owner and root (root could read its memory anyway)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["state"]["uid"] not in (os.getuid(), 0):
            owner = user_name(os.getuid())
            response = await on_error(Request(scope), Forbidden(f"this gflow daemon serves {owner} only"))
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)
