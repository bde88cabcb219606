"""The loop: event -> step -> ONE commit -> answer -> effects. The only place where that happens.

Everything that is ready in one turn of asyncio shares one commit. The commit runs in this
thread: nothing can be answered before it anyway, and so whoever reads sees exactly what
is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from gflow.core.effects import Accepted, Effect, Save
from gflow.core.engine import resolve, step
from gflow.core.events import Event, Submit, Tick
from gflow.core.ids import JobKey
from gflow.core.invariants import check
from gflow.core.model import Job, Moment, Spec
from gflow.core.state import State, restore
from gflow.daemon import clock
from gflow.errors import GflowError, ReadOnly
from gflow.faults import point
from gflow.store.port import Changes, Store, Submission

log = logging.getLogger("gflow.loop")


class Wish(Protocol):
    """Something that wants to happen in the next turn."""

    def event(self, loop: Loop, at: Moment) -> Event | None:
        """The event, made at the last moment; None if there is nothing left to do."""

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        """Called after the step: add to the commit, return the answer."""


class Plain:
    """A wish that is just an event."""

    def __init__(self, make: Callable[[Moment], Event]) -> None:
        self._make = make

    def event(self, loop: Loop, at: Moment) -> Event | None:
        return self._make(at)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        return None


class Submitting:
    """A submission: once per token, however often it is asked for."""

    def __init__(
        self,
        uid: int,
        user: str,
        token: str,
        specs: tuple[Spec, ...],
        references: tuple[tuple[str, ...], ...],
        blobs: dict[str, bytes],
    ) -> None:
        self.uid = uid
        self.user = user
        self.token = token
        self.specs = specs
        self.references = references
        self.blobs = blobs

    def event(self, loop: Loop, at: Moment) -> Event:
        meant = {resolve(loop.state, self.uid, text) for texts in self.references for text in texts}
        unknown = [key for key in meant if key not in loop.state.jobs]
        return Submit(
            at=at,
            uid=self.uid,
            user=self.user,
            specs=self.specs,
            references=self.references,
            outcomes=loop.store.outcomes(unknown),
        )

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> tuple[JobKey, ...]:
        keys = next(effect.keys for effect in effects if isinstance(effect, Accepted))
        changes.submissions.append(Submission(self.uid, self.token, keys, at.wall))
        changes.blobs.update(self.blobs)
        return keys


class Turn(msgspec.Struct):
    """What one turn gathered before its commit."""

    changes: Changes = msgspec.field(default_factory=Changes)
    effects: list[Effect] = msgspec.field(default_factory=list)
    answers: list[tuple[asyncio.Future[Any], Any]] = msgspec.field(default_factory=list)


class Loop:
    """Feeds the engine, commits what it decides, then lets it happen."""

    def __init__(
        self, state: State, store: Store, perform: Callable[[list[Effect]], None], *, paranoid: bool = False
    ) -> None:
        self.state = state
        self.store = store
        self._perform = perform
        self._paranoid = paranoid
        self._inbox: list[tuple[Wish, asyncio.Future[Any] | None]] = []
        self._tokens: dict[tuple[int, str], asyncio.Future[Any]] = {}
        self._waiters: dict[JobKey, list[asyncio.Future[Job]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ in

    def post(self, make: Callable[[Moment], Event]) -> None:
        """An event that nobody waits for."""
        self._add(Plain(make), None)

    async def ask(self, make: Callable[[Moment], Event]) -> None:
        """An event whose sender wants to know that it is durable."""
        await self._wish(Plain(make))

    async def submit(self, wish: Submitting) -> tuple[JobKey, ...]:
        """The keys of the submission's jobs; those it made before, if its token is known."""
        known = self.store.submission(wish.uid, wish.token)
        if known is not None:
            return known
        name = (wish.uid, wish.token)
        if name not in self._tokens:
            self._tokens[name] = asyncio.ensure_future(self._wish(wish))
            self._tokens[name].add_done_callback(lambda _: self._tokens.pop(name, None))
        keys: tuple[JobKey, ...] = await asyncio.shield(self._tokens[name])
        return keys

    async def ended(self, key: JobKey) -> Job | None:
        """The job once it is final; None if there never was one."""
        if key not in self.state.jobs:
            return self.store.job(key)
        future: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, []).append(future)
        return await future

    async def _wish(self, wish: Wish) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._add(wish, future)
        return await future

    def _add(self, wish: Wish, future: asyncio.Future[Any] | None) -> None:
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._run_turn)
        self._inbox.append((wish, future))

    # ------------------------------------------------------------ the turn

    def _run_turn(self) -> None:
        inbox, self._inbox = self._inbox, []
        turn = Turn()
        at = clock.now()
        for wish, future in inbox:
            self._take(turn, wish, future, at)
        self.conclude(turn)

    def _take(self, turn: Turn, wish: Wish, future: asyncio.Future[Any] | None, at: Moment) -> None:
        """Step one event. A refusal is an answer like any other: the state has not changed."""
        answer: Any
        try:
            event = wish.event(self, at)
            effects = step(self.state, event) if event is not None else []
            answer = wish.took(effects, turn.changes, at)
        except GflowError as error:
            answer, effects = error, []
            if future is None:
                log.error("refused: %s", error)
        if self._paranoid:
            check(self.state)
        for effect in effects:
            if isinstance(effect, Save):
                turn.changes.jobs[effect.job.key] = effect.job
        turn.effects += effects
        if future is not None:
            turn.answers.append((future, answer))

    def conclude(self, turn: Turn) -> None:
        """Make the turn durable; only then tell anybody and do anything."""
        try:
            self.persist(turn)
        except Exception as error:
            self._poisoned(turn, error)
            return
        self.answer(turn)
        self.perform(turn)

    def persist(self, turn: Turn) -> None:
        point("turn.before-commit")
        if turn.changes:
            turn.changes.next_number = self.state.next_number
            self.store.commit(turn.changes)
        point("turn.after-commit")
        self.state.ended.clear()

    def answer(self, turn: Turn) -> None:
        for future, answer in turn.answers:
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        for key, job in turn.changes.jobs.items():
            if job.is_final:
                for waiter in self._waiters.pop(key, ()):
                    if not waiter.done():
                        waiter.set_result(job)

    def perform(self, turn: Turn) -> None:
        point("turn.before-effects")
        self._perform(turn.effects)
        point("turn.after-effects")
        self.arm()

    def _poisoned(self, turn: Turn, error: Exception) -> None:
        """The commit failed, so memory is ahead of the disk: go back to what the disk has."""
        log.error("commit failed, state rebuilt from the database: %s", error)
        self.state = reload(self.state, self.store)
        for future, _ in turn.answers:
            if not future.done():
                future.set_exception(ReadOnly(f"the database cannot be written: {error}"))
        self.arm()

    # ------------------------------------------------------------ time

    def arm(self) -> None:
        """Wake up when the engine's next limit is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.state.next_due()
        if due is not None:
            delay = max(0.0, due - clock.now().boot)
            self._timer = asyncio.get_running_loop().call_later(delay, self.post, lambda at: Tick(at=at))


def reload(old: State, store: Store) -> State:
    """A state of the same machine, filled from what the store has."""
    state = State(cpus=old.cpus)
    state.gpus = old.gpus
    loaded = store.load()
    restore(state, loaded.jobs, loaded.outcomes, loaded.recent, loaded.next_number)
    return state
