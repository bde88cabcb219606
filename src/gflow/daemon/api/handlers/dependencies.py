"""The route for both sides of a job's dependencies: its parents, and the jobs that wait for it."""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.ids import JobKey
from gflow.core.model import PARENT_FIELDS, Job, Spec
from gflow.daemon.api.request import context_of, job_in_path
from gflow.daemon.api.response import answer
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.context import Context
from gflow.wire.answers.job_details import DependenciesAnswer, RelatedJob
from gflow.wire.encoding import key_label

# Jobs that are named on each side.
MOST = 50
NEEDS = dict(zip(PARENT_FIELDS, ("succeed", "succeed (one of them)", "end", "fail", "start"), strict=True))


async def show_dependencies(request: Request) -> Response:
    """The jobs that a job waits or waited for, and the jobs that wait for it now."""
    context, viewer = context_of(request), viewer_of(request)
    job = job_in_path(context, request)
    needs = parents_of(viewer.redact_job(job).spec)
    waits = context.loop.state.dependencies.children.get(job.key, {}).values()
    children = {key for wait in waits for key in wait.jobs}
    data = DependenciesAnswer(
        job=key_label(job.key),
        parents=[
            related
            for key, need in islice(needs.items(), MOST)
            if (related := _view(context, viewer, key, need))
        ],
        parents_total=len(needs),
        children=[
            related
            for key in nsmallest(MOST, children)
            if (related := _view(context, viewer, key, _need_of(context.job(key), job.key)))
        ],
        children_total=len(children),
    )
    return answer(request, lambda: data, lambda: _page(data))


def parents_of(spec: Spec) -> dict[JobKey, str]:
    """The parents that a spec names, each with what it has to do."""
    found = {key: need for field, need in NEEDS.items() for key in getattr(spec, field)}
    return found | dict.fromkeys(spec.depends_earlier, "end")


def _need_of(child: Job | None, parent: JobKey) -> str:
    return parents_of(child.spec).get(parent, "") if child is not None else ""


def _view(context: Context, viewer: Viewer, key: JobKey, needs: str) -> RelatedJob | None:
    """The job at the other end; None: it is hidden from the viewer, or deleted."""
    job = context.job(key)
    if job is None or not viewer.sees_job(job):
        return None
    return RelatedJob(id=key_label(key), name=viewer.redact_job(job).name, state=job.state.value, needs=needs)


def _page(data: DependenciesAnswer) -> str:
    lines = [f"waits for {one.id} ({one.name}, {one.state}) to {one.needs}\n" for one in data.parents]
    return "".join(lines + [f"{one.id} ({one.name}, {one.state}) waits for it\n" for one in data.children])
