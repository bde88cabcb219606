"""What a submission would become. The answer is made while it is sent, and none of it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.lifecycle.submit import admitted_part, check_number, check_owner, check_quotas
from gflow.core.model import Spec
from gflow.core.state.quotas import PROJECT, USER
from gflow.core.state.state import PART, State
from gflow.core.state.submissions import Judgements
from gflow.daemon.api.expansion import Expansion
from gflow.daemon.api.request import context_of
from gflow.daemon.api.response import TimedTurnResponse, wants_text
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import kind_of, local_note, scripts_of
from gflow.daemon.execution.gpu_memory_auto import note_of
from gflow.daemon.loop.bulk import Taking
from gflow.daemon.loop.commands import Submitting
from gflow.errors import GflowError, clean_page
from gflow.text.submissions import MOST_LINES, dry_run_head, dry_run_lines, dry_run_more, tasks_of
from gflow.wire.requests import Described
from gflow.wire.views import dry_run_jobs, encode


async def dry_run(request: Request, wish: Submitting, expansion: Expansion) -> Response:
    """Judge a submission as if it came now, then tell of its jobs."""
    context = context_of(request)
    trial = Trial(context, wish)
    async with AsyncExitStack() as stack:
        hold = stack.enter_context(context.fairness.holding(wish.uid))
        hold(expansion.raw_bytes)
        await expansion.each(trial.judge, PART, last=False)
        trial.conclude()
        if wants_text(request):
            pieces, media = _text(trial, expansion), "text/plain; charset=utf-8"
        else:
            pieces, media = _json(trial, expansion), "application/json"
        return TimedTurnResponse(pieces, stack.pop_all(), media_type=media)


class Trial:
    """A submission as it is judged, each part by itself, and their number; nothing changes."""

    def __init__(self, context: Context, wish: Submitting) -> None:
        self.context, self._wish = context, wish
        self.number = context.loop.state.next_number
        self.jobs = self.tasks = 0
        self.has_scripts = False
        self._taking = Taking(wish)
        self._known: Judgements = {}
        self._refusal: GflowError | None = None
        # One of each kind that may be worth a note.
        self._kinds: dict[tuple[object, ...], Spec] = {}

    def judge(self, part: list[Described]) -> None:
        """The first refusal is kept: what is said of all of them together comes before it."""
        self._wish.count_in(part)
        self.jobs += len(part)
        for job in part:
            self.tasks += tasks_of(job.spec)
            self.has_scripts |= bool(job.spec.on or job.spec.overflow)
            self._kinds.setdefault(kind_of(job.spec), job.spec)
        if self._refusal is None:
            try:
                self._judge(part)
            except GflowError as error:
                self._refusal = error

    def _judge(self, part: list[Described]) -> None:
        state, taking = self.context.loop.state, self._taking
        made = self.specs(part)
        outcomes = taking.outcomes(state, self.context.store, made)
        admitted_part(state, self._wish.uid, made, outcomes, taking.hidden(made), self._known, self._known)

    def conclude(self) -> None:
        """Refuse, if there is a reason to."""
        _check_count(self.context.loop.state, self._wish)
        if self._refusal is not None:
            raise self._refusal

    def specs(self, part: list[Described]) -> tuple[Spec, ...]:
        """What they would be: `@` means what it meant first."""
        state = self.context.loop.state
        self._taking.resolve(state)
        return self._taking.specs(part, state)

    @property
    def note(self) -> str:
        known = self._kinds.values()
        return note_of(known) or local_note(known)


def _check_count(state: State, wish: Submitting) -> None:
    check_owner(state, wish.uid)
    check_number(state, wish.uid, wish.count)
    wanted = Counter({(PROJECT, name): count for name, count in wish.projects.items()})
    wanted[USER, wish.user] = wish.count
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
    async for scripts in _scripts(trial, expansion):
        yield clean_page("".join(scripts))


async def _json(trial: Trial, expansion: Expansion) -> AsyncIterator[str]:
    yield '{"dry_run":true,"jobs":['
    comma = ""
    async for some in expansion.pieces():
        yield comma + encode(dry_run_jobs(trial.specs(some))).decode()[1:-1]
        comma = ","
    yield f'],"total":{trial.jobs},"scripts":['
    comma = ""
    async for scripts in _scripts(trial, expansion):
        if scripts:
            yield comma + encode(scripts).decode()[1:-1]
            comma = ","
    yield "]}"


async def _scripts(trial: Trial, expansion: Expansion) -> AsyncIterator[list[str]]:
    """What sbatch would get, where a cluster is asked."""
    if not trial.has_scripts:
        return
    context, number = trial.context, trial.number
    async for some in expansion.pieces():
        yield scripts_of(context.settings, context.target, number, some)
        number += len(some)
