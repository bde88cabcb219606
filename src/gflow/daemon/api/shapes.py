"""What every route takes and gives: ONE table, by route. The description of the API is made of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from gflow.text.prometheus import MEDIA
from gflow.wire import answers, queries, requests

JSON, TEXT, STREAM = "application/json", "text/plain; charset=utf-8", "text/event-stream"


class Shape(NamedTuple):
    """What a route takes and gives."""

    # One of several, if it is a tuple; (): any JSON object; None: text alone.
    answer: Any
    body: Any = None
    query: type[queries.Query] = queries.Query
    status: int = 200
    # Whether there is a text for people, too.
    has_text: bool = True
    media: str = JSON


SHAPES: dict[tuple[str, str], Shape] = {
    ("POST", "/jobs"): Shape(
        (answers.JobsAnswer, answers.DryRunAnswer), requests.SubmitRequest, queries.SubmitQuery, 201
    ),
    ("GET", "/jobs"): Shape(answers.JobsAnswer, query=queries.JobsQuery),
    ("POST", "/jobs/redo"): Shape(answers.JobsAnswer, requests.RedoRequest, queries.SubmitQuery, 201),
    ("POST", "/jobs/cancel"): Shape((answers.JobsAnswer, answers.DryCancelAnswer), requests.CancelRequest),
    ("POST", "/jobs/hold"): Shape(answers.JobsAnswer, requests.HoldRequest),
    ("POST", "/jobs/release"): Shape(answers.JobsAnswer, requests.ReleaseRequest),
    ("POST", "/jobs/update"): Shape(answers.JobsAnswer, requests.UpdateRequest),
    ("GET", "/jobs/{job}"): Shape(answers.JobsAnswer),
    ("GET", "/jobs/{job}/wait"): Shape(answers.JobsAnswer),
    ("GET", "/jobs/{job}/log"): Shape(answers.LogAnswer),
    ("GET", "/jobs/{job}/terminal"): Shape(answers.TerminalAnswer),
    ("POST", "/jobs/{job}/exec"): Shape(answers.ExecAnswer, requests.ExecRequest, status=201),
    ("GET", "/jobs/{job}/history"): Shape(answers.StoryAnswer),
    ("GET", "/jobs/{job}/why"): Shape(answers.WhyAnswer),
    ("GET", "/jobs/{job}/usage"): Shape(answers.UsageAnswer, query=queries.UsageQuery),
    ("GET", "/events"): Shape(
        (answers.Happening, answers.Connected, answers.Missed),
        query=queries.EventsQuery,
        has_text=False,
        media=STREAM,
    ),
    ("POST", "/drain"): Shape(answers.DrainAnswer, requests.DrainRequest),
    ("GET", "/gpus"): Shape(answers.GpuLinesAnswer),
    ("POST", "/gpus"): Shape(answers.AllowedAnswer, requests.GpusRequest),
    ("POST", "/limits"): Shape(answers.LimitAnswer, requests.LimitRequest),
    ("GET", "/quotas"): Shape(answers.QuotasAnswer),
    ("PUT", "/quotas"): Shape(answers.QuotaAnswer, requests.QuotaRequest),
    ("GET", "/reservations"): Shape(answers.ReservationsAnswer, query=queries.ReservationsQuery),
    ("POST", "/reservations"): Shape(answers.ReservationAnswer, requests.ReservationRequest, status=201),
    ("GET", "/reservations/{id}"): Shape(answers.ReservationAnswer),
    ("DELETE", "/reservations/{id}"): Shape(answers.ReservationAnswer),
    ("GET", "/gpu-processes"): Shape(answers.IgnoredAnswer),
    ("POST", "/gpu-processes/ignore"): Shape(answers.IgnoredNowAnswer, requests.GpuProcess),
    ("POST", "/gpu-processes/unignore"): Shape(answers.IgnoredNowAnswer, requests.GpuProcess),
    ("POST", "/backup"): Shape(answers.BackupAnswer),
    ("POST", "/notifications/test"): Shape(answers.DeliveriesAnswer),
    ("POST", "/tokens"): Shape(answers.NewTokenAnswer, requests.TokenRequest, status=201),
    ("GET", "/tokens"): Shape(answers.TokensAnswer),
    ("POST", "/tokens/revoke"): Shape(answers.RevokedAnswer, requests.RevokeRequest),
    ("GET", "/stats"): Shape((answers.StatsAnswer, answers.PredictionsAnswer), query=queries.StatsQuery),
    ("GET", "/info"): Shape(answers.InfoAnswer, query=queries.InfoQuery),
    ("GET", "/status"): Shape(answers.StatusAnswer),
    ("GET", "/health"): Shape(answers.HealthAnswer),
    ("GET", "/metrics"): Shape(None, has_text=False, media=MEDIA),
    ("GET", "/openapi.json"): Shape((), has_text=False),
}
