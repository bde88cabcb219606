"""A submission of more than PART jobs, in parts: open, stage, close, then put the jobs into the queue."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from gflow.core.effects import Abandoned, Closed, Effect, Reserved
from gflow.core.events import Abandon, Arrive, Close, Event, Open, Stage, Tick
from gflow.core.ids import JobKey, job_key
from gflow.core.key_table import KeyTable
from gflow.core.model import AuditEntry, Job, JobState, Moment, Spec
from gflow.core.state.state import PART, State
from gflow.daemon.loop.bulk import Loop, check_connected
from gflow.daemon.loop.commands import ReferenceResolver, SubmitCommand, hidden_among, parents_of
from gflow.errors import GflowError
from gflow.fault_points import point
from gflow.store.bulk import OpenSubmission
from gflow.store.port import Changes, Store, Submission, neighbours
from gflow.wire.requests import ParsedJob

log = logging.getLogger("gflow.bulk")
# The uid under which arrivals take turns with users.
ARRIVALS = -1
# Number of jobs of a refused submission that one commit deletes.
DELETED = 20 * PART


class StagedSubmission:
    """A submission in parts: its remaining jobs, and the data that its parts share."""

    def __init__(self, command: SubmitCommand) -> None:
        self.uid, self.user = command.uid, command.user
        self.token, self.origin = command.token, command.origin
        self.count, self.first, self.staged = command.count, 0, 0
        # Each job description is freed as its job is made.
        self._left = deque(command.jobs)
        self.projects = command.projects
        self._relative = command.relative
        self._hides, self._rights = command.hides, command.rights
        self._resolver = ReferenceResolver(command.uid)
        # Final states of parents, cached: they never change.
        self._ended: dict[JobKey, JobState] = {}
        self._last: Spec | None = None

    @property
    def keys(self) -> tuple[JobKey, ...]:
        return neighbours(job_key(self.first), self.count)

    def resolve(self, state: State) -> None:
        """Fix the meaning of relative references (`@`) for all parts."""
        self._resolver.pin(state, self._relative)

    def next_part(self) -> list[ParsedJob]:
        return [self._left.popleft() for _ in range(min(PART, len(self._left)))]

    def specs(self, part: list[ParsedJob], state: State) -> tuple[Spec, ...]:
        """The specs of a part, with parents and group set. Equal neighbours become one object."""
        made: list[Spec] = []
        for job in part:
            spec = job.spec
            more: dict[str, Any] = dict(self._resolver.fields(state, job.references))
            if (spec.max_concurrent and not spec.array) or job.is_of_sweep:
                more["group"] = self.first
            if more:
                spec = msgspec.structs.replace(spec, **more)
            if self._last is None or spec != self._last:
                self._last = spec
            made.append(self._last)
        if self._rights is not None:
            self._rights.check_specs(made)
        return tuple(made)

    def hidden(self, specs: Sequence[Spec]) -> frozenset[JobKey]:
        """The parents that the submitter may not see."""
        return hidden_among(parents_of(specs), self._hides)

    def outcomes(self, state: State, store: Store, specs: Sequence[Spec]) -> dict[JobKey, JobState]:
        ended = {key for key in parents_of(specs) if not state.jobs.is_active(key)}
        self._ended |= store.outcomes(ended - self._ended.keys())
        return self._ended

    def record(self, *, closed: bool = False) -> OpenSubmission:
        return OpenSubmission(self.first, self.count, self.uid, self.origin, closed)


class _OpenCommand:
    """Open a submission: reserve its job numbers and its share of the limits."""

    def __init__(self, submission: StagedSubmission) -> None:
        self.origin = submission.origin
        self._submission = submission

    def event(self, state: State, store: Store, at: Moment) -> Event:
        submission = self._submission
        submission.resolve(state)
        return Open(
            at=at,
            uid=submission.uid,
            user=submission.user,
            count=submission.count,
            projects=dict(submission.projects),
            origin=submission.origin,
        )

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        self._submission.first = next(effect.first for effect in effects if isinstance(effect, Reserved))
        changes.bulk[self._submission.first] = self._submission.record()


class _StageCommand:
    """Store one part of a submission as hidden jobs."""

    def __init__(self, submission: StagedSubmission, part: list[ParsedJob]) -> None:
        self.origin = submission.origin
        self._submission = submission
        self._part = part

    def event(self, state: State, store: Store, at: Moment) -> Event:
        specs = self._submission.specs(self._part, state)
        outcomes = self._submission.outcomes(state, store, specs)
        hidden = self._submission.hidden(specs)
        return Stage(at=at, first=self._submission.first, specs=specs, outcomes=outcomes, hidden=hidden)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        for job in self._part:
            changes.blobs.update(job.blobs)
        self._submission.staged += len(self._part)


class _CloseCommand:
    """Close a submission: its jobs become visible."""

    def __init__(self, submission: StagedSubmission) -> None:
        self.origin = submission.origin
        self._submission = submission

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Close(at=at, uid=self._submission.uid, first=self._submission.first)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        submission = self._submission
        assert any(isinstance(effect, Closed) for effect in effects)
        changes.submissions.append(Submission(submission.uid, submission.token, submission.keys, at.wall))
        changes.bulk[submission.first] = submission.record(closed=True)


class _AbandonCommand:
    """Abandon a submission. The answer is its jobs; the caller frees them a few at a time."""

    origin = "daemon"

    def __init__(self, first: int) -> None:
        self._first = first

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Abandon(at=at, first=self._first) if self._first in state.open else Tick(at=at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> KeyTable[Job]:
        return next((effect.jobs for effect in effects if isinstance(effect, Abandoned)), KeyTable())


class _DeleteCommand:
    """Delete a span of hidden jobs from the database, or (None) the record of the submission."""

    origin = "daemon"

    def __init__(self, first: int, span: tuple[JobKey, JobKey] | None) -> None:
        self._first = first
        self._span = span

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        if self._span is not None:
            changes.discarded.append(self._span)
        else:
            changes.bulk[self._first] = None


class _ArriveCommand:
    """Move one part of a submission's jobs into the queue; `first` 0: of the earliest submission."""

    origin = "daemon"

    def __init__(self, first: int) -> None:
        self._first = first

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Arrive(at=at, most=PART, first=self._first)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        return None


async def submit(loop: Loop, command: SubmitCommand) -> tuple[JobKey, ...]:
    """Submit jobs in parts; on an error none of them remains."""
    submission = StagedSubmission(command)
    command.jobs = []
    async with loop.turns.of(command.uid):
        check_connected(command)
        await loop.run_command(_OpenCommand(submission))
    point("bulk.opened")
    try:
        while part := submission.next_part():
            async with loop.turns.of(command.uid):
                check_connected(command)
                await loop.run_command(_StageCommand(submission, part))
            point("bulk.staged")
        arrived = loop.arrival(submission.first)
        async with loop.turns.of(command.uid):
            check_connected(command)
            await loop.run_command(_CloseCommand(submission))
    except GflowError:
        await _abandon(loop, submission)
        raise
    point("bulk.closed")
    await arrived
    return submission.keys


async def _abandon(loop: Loop, submission: StagedSubmission) -> None:
    """Delete all jobs of a submission. If that fails they stay hidden for `recovery_changes`."""
    loop.forget_arrival(submission.first)
    try:
        jobs = await loop.run_command(_AbandonCommand(submission.first))
        for start in range(0, submission.staged, DELETED):
            last = min(start + DELETED, submission.staged) - 1
            async with loop.turns.of(submission.uid):
                span = job_key(submission.first + start), job_key(submission.first + last)
                await loop.run_command(_DeleteCommand(submission.first, span))
                for _ in range(min(DELETED, len(jobs))):
                    jobs.take()
        await loop.run_command(_DeleteCommand(submission.first, None))
    except GflowError as error:
        log.warning("submission %d was refused, and is deleted later: %s", submission.first, error)


async def process_arrivals(loop: Loop) -> None:
    """Move all jobs of closed submissions into the queue, part by part.

    Users take turns in the order of their uids; after the last one, the earliest submission has a turn.
    """
    uid = ARRIVALS
    while loop.state.arriving:
        async with loop.turns.of(ARRIVALS):
            closed = {one.uid: one.first for one in reversed(loop.state.open.values()) if one.is_closed}
            uid = min((other for other in closed if other > uid), default=ARRIVALS)
            await loop.run_command(_ArriveCommand(closed.get(uid, 0)))
        point("bulk.arrived")


def recovery_changes(store: Store, busy: set[int]) -> Changes:
    """The changes that recover unfinished submissions: open ones are deleted, closed ones get audit entries.

    `busy`: numbers of the submissions in progress in this daemon.
    """
    changes = Changes()
    for number, bulk in store.unfinished().items():
        if number in busy or not isinstance(bulk, OpenSubmission):
            continue
        changes.bulk[number] = None
        if bulk.closed:
            unlogged = store.unaudited(bulk)
            changes.audit += [
                AuditEntry(at, key, bulk.uid, bulk.origin, "submitted", "") for key, at in unlogged
            ]
        else:
            changes.discarded.append(bulk.span)
    return changes
