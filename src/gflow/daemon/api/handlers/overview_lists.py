"""The lists of the overview: jobs of all users that run, that start next, and that ended last."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from starlette.requests import Request

from gflow.core.ids import JobKey
from gflow.core.model import Job, JobState, Moment
from gflow.core.queries.job_filter import Filter
from gflow.daemon.api.handlers.queue import count_jobs
from gflow.daemon.api.job_search import find_last_ended
from gflow.daemon.api.request import context_of, while_connected
from gflow.daemon.api.visibility import viewer_of
from gflow.text.queue import Entry
from gflow.wire.answers.job_details import ExpectedStart
from gflow.wire.answers.jobs import JobView, job_view
from gflow.wire.answers.overview import JobLists
from gflow.wire.encoding import key_label, rfc3339

# Longest queue for which the expected starts are computed.
MOST_FORECAST = 2000
WAITING = frozenset({JobState.QUEUED, JobState.HOLD})
# Running jobs, for the GPUs that they hold; and ended jobs for each line, as an array is one line.
MOST_RUNNING = 50
ENDED_PER_LINE = 8
# Active jobs that are looked at for those that wait.
MOST_READ = 10_000


async def list_jobs(request: Request, now: Moment, lines: int) -> JobLists:
    """Jobs of all users that the caller sees, enough for so many lines of each kind."""
    context, viewer = context_of(request), viewer_of(request)
    starts = await _next_starts(request, now, lines)
    async with context.rate_limits.listing_turn(viewer.uid):
        wanted = Filter(users=viewer.only_users)
        ended = await while_connected(
            request, find_last_ended(context, viewer.uid, wanted, ENDED_PER_LINE * lines)
        )
    jobs = context.loop.state.jobs
    soon = {key: jobs[key] for _, key in starts if key in jobs}
    others = (job for job in _waiting(request) if job.key not in soon)
    waiting = islice(_one_of_each_group(chain(soon.values(), others)), len(soon) + lines)
    return JobLists(
        running=_views(context.entries(_running(request), viewer)),
        waiting=_views(context.entries(list(waiting), viewer)),
        starts=[ExpectedStart(key_label(key), rfc3339(at)) for at, key in starts],
        ended=_views(viewer.redact_entries(ended)),
    )


def _running(request: Request) -> list[Job]:
    """Jobs that run here and on clusters, in order of submission."""
    state, viewer = context_of(request).loop.state, viewer_of(request)
    there = (state.jobs[key] for key in state.remote.jobs if key not in state.running)
    jobs = [*state.running.values(), *(job for job in there if job.state is JobState.RUNNING)]
    seen = (job for job in jobs if job.progress is None and viewer.sees_job(job))
    return heapq.nsmallest(MOST_RUNNING, seen, key=lambda job: job.key)


def _waiting(request: Request) -> Iterator[Job]:
    """Waiting jobs in order of submission, among the first of all active ones: there may be a million."""
    wanted = Filter(states=WAITING, users=viewer_of(request).only_users)
    first = islice(context_of(request).loop.state.jobs.values(), MOST_READ)
    return (job for job in first if wanted.matches(job))


async def _next_starts(request: Request, now: Moment, most: int) -> list[tuple[float, JobKey]]:
    """The soonest expected starts on the wall clock; none if the queue is long."""
    context, viewer = context_of(request), viewer_of(request)
    if count_jobs(context.loop.state)[1] > MOST_FORECAST:
        return []
    found = await while_connected(request, context.forecasts.starts(viewer.uid))
    jobs = context.loop.state.jobs
    seen = sorted((at, key) for key, at in found.items() if key in jobs and viewer.sees_job(jobs[key]))
    first = islice(_one_of_each_group(jobs[key] for _, key in seen), most)
    return [(now.to_wall(found[job.key]), job.key) for job in first]


def _one_of_each_group(jobs: Iterable[Job]) -> Iterator[Job]:
    """The first job of each sweep, and jobs that belong to none."""
    seen: set[int] = set()
    for job in jobs:
        if job.spec.group <= 0 or job.spec.group not in seen:
            seen.add(job.spec.group)
            yield job


def _views(entries: Iterable[Entry]) -> list[JobView]:
    return [job_view(*entry) for entry in entries]
