"""The queue as people ask for it: filtered, as a table or as JSON."""

from __future__ import annotations

import time

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from gflow.core.model import Job
from gflow.daemon.api.answers import answer
from gflow.daemon.api.asking import context_of, keys_of, known, limit_of, states_of
from gflow.daemon.context import Context
from gflow.text.queue import columns_of, queue_table
from gflow.wire.views import jobs_view

# Finished jobs shown unless somebody asks for more: there may be a million.
NEWEST = 1000


async def listing(request: Request) -> Response:
    """The queue: active jobs, or all of them, filtered."""
    context = context_of(request)
    query = request.query_params
    names = columns_of(query.get("format", ""))
    if query.get("jobs"):
        keys = keys_of(context, request, query["jobs"].split(","))
        found, note = [known(context, key) for key in keys], ""
    else:
        found, note = _filtered(context, query)
    entries = context.entries(found)
    return answer(
        request, lambda: jobs_view(entries), lambda: queue_table(entries, names, time.time()) + note
    )


def _filtered(context: Context, query: QueryParams) -> tuple[list[Job], str]:
    """Active jobs, or the newest of all; and a line that says so if some are not shown."""
    states = states_of(query.get("states", ""))
    users = [name for name in query.get("users", "").split(",") if name]
    active = not query.get("all") and not states - context.active_states
    limit = limit_of(query.get("limit", ""), 0 if active else NEWEST)
    jobs = list(context.store.jobs(active=active, states=states, users=users, limit=limit))
    note = f"(the newest {limit}; --limit 0 shows all)\n" if limit and len(jobs) == limit else ""
    # An array whose tasks have all started is shown by its tasks.
    return [job for job in jobs if job.progress is None or job.progress.pending], note
