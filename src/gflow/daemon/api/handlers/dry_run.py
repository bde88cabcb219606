"""Dry run of a submission. The answer is streamed: jobs are expanded again for it, and none is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.forecast.wait_report import why_never
from gflow.core.ids import job_key
from gflow.core.lifecycle.submit import (
    check_number,
    check_owner,
    check_quotas,
    check_submission_part,
    find_earlier,
    new_job,
)
from gflow.core.model import LOCAL, Job, Spec
from gflow.core.state.dependencies import Wait
from gflow.core.state.name_index import NameIndex
from gflow.core.state.quotas import PROJECT, USER
from gflow.core.state.state import PART, State
from gflow.core.state.submissions import WaitCache
from gflow.daemon.api.expansion import Expansion
from gflow.daemon.api.request import context_of
from gflow.daemon.api.response import TimedTurnResponse, answer, json_frame, json_items, wants_text
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import kind_of, local_note, scripts_of
from gflow.daemon.execution.gpu_memory_auto import auto_memory_note
from gflow.daemon.loop import timers
from gflow.daemon.loop.bulk_submission import StagedSubmission
from gflow.daemon.loop.commands import SubmitCommand
from gflow.daemon.notify.destinations import mail_note
from gflow.errors import GflowError, clean_page
from gflow.text.submissions import (
    MOST_LINES,
    dry_run_head,
    dry_run_lines,
    dry_run_more,
    tasks_of,
    would_start_line,
)
from gflow.wire.answers.jobs import DryRunAnswer, planned_job
from gflow.wire.encoding import rfc3339
from gflow.wire.requests import ParsedJob


async def dry_run(
    request: Request, command: SubmitCommand, expansion: Expansion, *, wants_start: bool
) -> Response:
    """Check a submission as if it were made now, then stream its jobs. `wants_start`: only its start."""
    context = context_of(request)
    trial = Trial(context, command)
    async with AsyncExitStack() as stack:
        hold = stack.enter_context(context.rate_limits.count_held(command.uid))
        hold(expansion.raw_bytes)
        await expansion.for_each(trial.check_part, PART, last=False)
        trial.raise_refusal()
        if wants_start:
            return await _answer_start(request, trial)
        if wants_text(request):
            pieces, media = _text(trial, expansion), "text/plain; charset=utf-8"
        else:
            pieces, media = _json(trial, expansion), "application/json"
        return TimedTurnResponse(pieces, stack.pop_all(), media_type=media)


class Trial:
    """Checks the parts of a submission against the current state, and counts its jobs. Changes nothing."""

    def __init__(self, context: Context, command: SubmitCommand) -> None:
        self.context, self._command, self.uid = context, command, command.uid
        self.number = context.loop.state.jobs.next_number
        self.jobs = self.tasks = 0
        self.has_scripts = False
        self._submission = StagedSubmission(command)
        self._checked: WaitCache = {}
        self._refusal: GflowError | None = None
        # One spec of each kind that may need a note.
        self._kinds: dict[tuple[object, ...], Spec] = {}
        # Its first spec, and the dependencies of that.
        self._first: tuple[Spec, Wait | None] | None = None

    def check_part(self, part: list[ParsedJob]) -> None:
        """Check a part. The first refusal is kept, because refusals of the total count take precedence."""
        self._command.count_in(part)
        self.jobs += len(part)
        for job in part:
            self.tasks += tasks_of(job.spec)
            self.has_scripts |= bool(job.spec.on or job.spec.overflow)
            self._kinds.setdefault(kind_of(job.spec), job.spec)
        if self._refusal is None:
            try:
                self._check_part(part)
            except GflowError as error:
                self._refusal = error

    def _check_part(self, part: list[ParsedJob]) -> None:
        state, submission = self.context.loop.state, self._submission
        made = self.specs(part)
        outcomes = submission.outcomes(state, self.context.store, made)
        command, known = self._command, self._checked
        made = tuple(find_earlier(state, command.uid, made, self.number, NameIndex()))
        waits = check_submission_part(
            state, command.uid, command.user, made, outcomes, submission.hidden(made), known, known
        )
        self._first = self._first or (made[0], waits[0])

    def first_job(self) -> tuple[Job, Wait | None]:
        """The first job, as it would be submitted now, and the dependencies that it would wait for."""
        assert self._first is not None
        spec, wait = self._first
        at, command = timers.now(), self._command
        job = new_job(job_key(self.number), spec, command.uid, command.user, at.wall)
        job.ready_at = at.boot
        return job, wait

    def raise_refusal(self) -> None:
        """Check the totals, then raise the first refusal of a part, if any."""
        _check_totals(self.context.loop.state, self._command)
        if self._refusal is not None:
            raise self._refusal

    def specs(self, part: list[ParsedJob]) -> tuple[Spec, ...]:
        """The resolved specs of a part. `@` is resolved once, for the whole submission."""
        state = self.context.loop.state
        self._submission.resolve(state)
        return self._submission.specs(part, state)

    @property
    def note(self) -> str:
        known = self._kinds.values()
        note = auto_memory_note(known) or local_note(known)
        return "; ".join(filter(None, (note, mail_note(self.context.settings.destinations, known))))


async def _answer_start(request: Request, trial: Trial) -> Response:
    """When the first job of the submission would start."""
    context, (job, wait) = trial.context, trial.first_job()
    at, start, why, never = timers.now(), None, "", ""
    if job.target != LOCAL:
        why = f"{job.target} decides when"
    elif wait is not None:
        why = "after its dependencies: the time cannot be estimated"
    elif job.spec.hold:
        why = "when it is released"
    elif not (never := why_never(context.loop.state, job)):
        query = await context.forecasts.forecast_for_new(job.uid, job)
        found = query.start()
        start = None if found is None else max(job.spec.begin_at, at.to_wall(found.expected))
    data = DryRunAnswer(
        dry_run=True, jobs=[planned_job(job.spec)], total=trial.jobs, scripts=[], starts_at=rfc3339(start)
    )
    page = would_start_line(job.spec, trial.tasks, start, at.wall, why, never)
    note = f"{trial.note}\n" if trial.note else ""
    return answer(request, lambda: data, lambda: clean_page(page + note))


def _check_totals(state: State, command: SubmitCommand) -> None:
    check_owner(state, command.uid)
    check_number(state, command.uid, command.count)
    wanted = Counter({(PROJECT, name): count for name, count in command.projects.items()})
    wanted[USER, command.user] = command.count
    check_quotas(state, wanted)


async def _text(trial: Trial, expansion: Expansion) -> AsyncIterator[str]:
    yield dry_run_head(trial.tasks)
    shown = 0
    async for some in expansion.pieces():
        lines = list(dry_run_lines(trial.specs(some), shown))
        shown += len(lines)
        yield clean_page("".join(lines))
        if shown == MOST_LINES:
            break
    yield clean_page(dry_run_more(trial.tasks, shown) + (f"{trial.note}\n" if trial.note else ""))
    async for scripts in _batch_scripts(trial, expansion):
        yield clean_page("".join(scripts))


async def _json(trial: Trial, expansion: Expansion) -> AsyncIterator[str]:
    head, middle, end = json_frame(DryRunAnswer(dry_run=True, jobs=[], total=trial.jobs, scripts=[]))
    yield head
    comma = ""
    async for some in expansion.pieces():
        yield comma + json_items([planned_job(spec) for spec in trial.specs(some)])
        comma = ","
    yield middle
    comma = ""
    async for scripts in _batch_scripts(trial, expansion):
        if scripts:
            yield comma + json_items(scripts)
            comma = ","
    yield end


async def _batch_scripts(trial: Trial, expansion: Expansion) -> AsyncIterator[list[str]]:
    """Yield the batch scripts of the jobs that go to a cluster."""
    if not trial.has_scripts:
        return
    context, number = trial.context, trial.number
    async for some in expansion.pieces():
        yield scripts_of(context.settings, context.target, trial.uid, number, some)
        number += len(some)
