"""The loop: event -> step -> ONE commit -> effects -> answer. The only place where that happens.

All commands that are ready in one turn of asyncio share one commit. The commit runs in this thread: no
command can be answered before it anyway, and readers see exactly the durable state.

When a commit fails (disk full, read-only, broken), memory is ahead of the disk. The loop then rebuilds the
state from the database, answers clients with an error, and refuses changes until a commit works again.
Events that the machine reports meanwhile, such as the end of a job, are kept and processed then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from gflow.core.effects import Effect
from gflow.core.engine import step
from gflow.core.events import Event, GpusSeen, Tick
from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.invariants import check
from gflow.core.model import Job, Moment
from gflow.core.state.state import PART, State, next_boot_deadline, next_wall_deadline
from gflow.daemon.loop import bulk_actions, bulk_submission, timers
from gflow.daemon.loop.commands import AuditCommand, Command, EventCommand, MetaCommand, SubmitCommand
from gflow.daemon.loop.counters import Meters
from gflow.daemon.loop.stored_state import gather, keep_counts, reload
from gflow.daemon.loop.timers import Alarm
from gflow.daemon.loop.turns import Places, Turns
from gflow.daemon.loop.wakeups import EndWaiters, Wakeups
from gflow.errors import GflowError, ReadOnly, StoreError, TransitionError
from gflow.fault_points import point
from gflow.store.bulk import Intent, OpenSubmission
from gflow.store.port import Changes, Store

log = logging.getLogger("gflow.loop")
RETRY_S = 1.0

Pending = tuple[Command, "asyncio.Future[Any] | None"]


class Turn(msgspec.Struct):
    """The commands of one turn, and the changes, effects and answers that they led to."""

    commands: list[Pending]
    changes: Changes = msgspec.field(default_factory=Changes)
    effects: list[Effect] = msgspec.field(default_factory=list)
    answers: list[tuple[asyncio.Future[Any], Any]] = msgspec.field(default_factory=list)


class _PendingSubmission:
    """A submission in progress. It is dropped when its last waiting client disconnects."""

    def __init__(self, command: SubmitCommand, future: asyncio.Future[Any]) -> None:
        self.command, self.future = command, future
        self._waiting = 0

    async def keys(self) -> tuple[JobKey, ...]:
        self._waiting += 1
        try:
            keys: tuple[JobKey, ...] = await asyncio.shield(self.future)
            return keys
        except asyncio.CancelledError:
            self.command.is_dropped = self._waiting == 1
            raise
        finally:
            self._waiting -= 1


def _releasing(release: Callable[[], None]) -> Callable[[asyncio.Future[Any]], None]:
    def on_done(future: asyncio.Future[Any]) -> None:
        release()
        if not future.cancelled():
            # Mark it as retrieved: if all clients disconnected, asyncio would log it as a bug.
            future.exception()

    return on_done


class Loop:
    """Feeds events to the engine, commits its decisions, then carries them out."""

    def __init__(
        self, state: State, store: Store, perform: Callable[[list[Effect]], None], *, paranoid: bool = False
    ) -> None:
        self.state = state
        # Incremented by each turn and each rebuild of the state.
        self.version = 0
        self.store = store
        # Why the database cannot be written at the moment; empty if it can.
        self.read_only = ""
        # The hint for users that goes with `read_only`.
        self._read_only_hint = ""
        self.wakeups = Wakeups()
        self.meters = Meters()
        self.meters.recount(state.jobs.values())
        self._perform = perform
        self._paranoid = paranoid
        self._inbox: list[Pending] = []
        self._backlog: list[Pending] = []
        # Whether the state is ahead of the database: a step or commit failed, and reloading did too.
        self._is_ahead = False
        self._tokens: dict[tuple[int, str], _PendingSubmission] = {}
        self._end_waiters = EndWaiters()
        self._change_sets: list[set[JobKey]] = []
        # Bulk work. One part runs at a time, and each user has a bounded number of bulk requests in progress.
        self.turns = Turns()
        self._places = Places()
        # Futures that are done when all jobs of a submission are in the queue, by its first job number.
        self._arrivals: dict[int, asyncio.Future[None]] = {}
        # The task that moves jobs of closed submissions into the queue.
        self._arriving: asyncio.Task[None] | None = None
        # Tasks that continue the intents of an earlier daemon.
        self._resumed: set[asyncio.Task[None]] = set()
        # Numbers of the intents that are being carried out.
        self.busy: set[int] = set()
        self._intents = -1
        self._boot_timer = Alarm(time.CLOCK_BOOTTIME, self._tick)
        self._wall_timer = Alarm(time.CLOCK_REALTIME, self._tick)

    # ------------------------------------------------------------ in

    def post(self, make: Callable[[Moment], Event]) -> None:
        """Queue an event that the machine reported. It has no answer, and it survives a failed commit."""
        self._add(EventCommand(make), None)

    def add_audit_entry(self, what: str, detail: str) -> None:
        """Add an entry about the daemon itself to the audit log."""
        self._add(AuditCommand(what, detail), None)

    def store_meta(self, values: dict[str, str | int]) -> None:
        """Store values of the daemon (table meta) that the next daemon needs."""
        self._add(MetaCommand(values), None)

    async def ask(self, make: Callable[[Moment], Event], origin: str = "daemon") -> None:
        """Queue an event and wait until it is durable."""
        await self.run_command(EventCommand(make, origin))

    async def submit(self, command: SubmitCommand) -> tuple[JobKey, ...]:
        """Submit jobs; return their keys, or those of the first submission with the same token."""
        release = await self._places.take(command.uid) if len(command.jobs) > PART else None
        try:
            name = (command.uid, command.token)
            while (pending := self._tokens.get(name)) is not None and pending.command.is_dropped:
                await asyncio.wait([pending.future])  # it is being abandoned; this is the client's retry
            known = self.store.submission(*name)
            if known is not None:
                return known
            if pending is None:
                pending = self._tokens[name] = _PendingSubmission(command, self._start_submission(command))
                pending.future.add_done_callback(lambda _: self._tokens.pop(name, None))
                if release is not None:
                    pending.future.add_done_callback(_releasing(release))
                    release = None
        finally:
            if release is not None:
                release()
        return await pending.keys()

    def _start_submission(self, command: SubmitCommand) -> asyncio.Future[Any]:
        """Begin a submission, in one turn if it is small; the result is the keys of its jobs."""
        if len(command.jobs) <= PART:
            return self._enqueue(command)
        self._check_writable()
        return asyncio.ensure_future(bulk_submission.submit(self, command))

    async def apply_action(self, action: bulk_actions.BulkAction, keys: Sequence[JobKey]) -> None:
        """Apply a user action to many jobs, in many turns."""
        release = await self._places.take(action.uid)
        try:
            self._check_writable()
        except ReadOnly:
            release()
            raise
        doing = asyncio.ensure_future(bulk_actions.apply_action(self, action, keys))
        doing.add_done_callback(_releasing(release))
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            action.is_dropped = True
            raise

    async def wait_for_end(self, key: JobKey) -> Job | None:
        """Wait until the job is final and return it; None if there is no such job."""
        if not self.state.jobs.is_active(key):
            if self._never_starts(key):
                return await self.wait_for_end(job_key(number_of(key)))
            return self.store.job(key)
        return await self._end_waiters.wait(key)

    async def run_command(self, command: Command) -> Any:
        """Run a command; return its answer once its changes are durable."""
        return await self._enqueue(command)

    def _enqueue(self, command: Command) -> asyncio.Future[Any]:
        self._check_writable()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._add(command, future)
        return future

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnly(self.read_only, hint=self._read_only_hint)

    # ------------------------------------------------------------ bulk work

    def arrival(self, first: int) -> asyncio.Future[None]:
        """A future that is done when all jobs of this submission are in the queue. Call it before closing."""
        future = self._arrivals[first] = asyncio.get_running_loop().create_future()
        return future

    def mark_arrived(self, first: int) -> None:
        """Complete the future of a submission whose jobs are all in the queue."""
        future = self._arrivals.pop(first, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _finish_arrivals(self, changes: Changes) -> None:
        for number, record in changes.bulk.items():
            if record is None:
                self.mark_arrived(number)

    def forget_arrival(self, first: int) -> None:
        self._arrivals.pop(first, None)

    def next_intent(self) -> int:
        """A negative number for a new intent; submissions have positive ones."""
        self._intents = min([self._intents, *self.store.unfinished()]) - 1
        return self._intents

    def recover(self) -> None:
        """Finish or undo bulk work that an earlier daemon, or this one before a failed commit, began."""
        changes = bulk_submission.recovery_changes(self.store, set(self.state.open))
        if changes:
            self.store.commit(changes)
        for number, record in self.store.unfinished().items():
            if isinstance(record, Intent) and number not in self.busy:
                self.busy.add(number)
                task = asyncio.ensure_future(bulk_actions.resume(self, number, record))
                self._resumed.add(task)
                task.add_done_callback(self._resumed.discard)
        self._start_arrivals()

    def _try_recover(self) -> None:
        try:
            self.recover()
        except StoreError as error:  # the next commit fails as well, and schedules a retry
            log.error("%s; unfinished bulk work is left for later", error)

    def _start_arrivals(self) -> None:
        if self.state.arriving and (self._arriving is None or self._arriving.done()):
            self._arriving = asyncio.ensure_future(self._process_arrivals())

    async def _process_arrivals(self) -> None:
        try:
            await bulk_submission.process_arrivals(self)
        except ReadOnly:
            pass  # closed submissions are durable: their jobs arrive when the disk can be written again
        except GflowError as error:
            log.error("jobs of a submission cannot be put into the queue: %s", error)
            asyncio.get_running_loop().call_later(RETRY_S, self._start_arrivals)

    def _add(self, command: Command, future: asyncio.Future[Any] | None) -> None:
        if self.read_only:
            self._backlog.append((command, future))
            return
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._run_turn)
        self._inbox.append((command, future))

    @contextmanager
    def track_changes(self) -> Iterator[set[JobKey]]:
        """A set that collects the keys of the jobs that change from now on."""
        changed: set[JobKey] = set()
        self._change_sets.append(changed)
        try:
            yield changed
        finally:
            # By identity: two empty sets are equal.
            self._change_sets = [other for other in self._change_sets if other is not changed]

    # ------------------------------------------------------------ the turn

    def _run_turn(self) -> None:
        pending, self._inbox = self._inbox, []
        if self._try_turn(pending):
            return
        for one in pending:  # one command hit a bug: run each alone, so that the others still succeed
            if not self._try_turn([one]) and one[1] is not None and not one[1].done():
                one[1].set_exception(GflowError("this request hit a bug in gflow; the daemon's log has it"))

    def _try_turn(self, commands: list[Pending]) -> bool:
        """Run one turn. False if a step raised: the state is then rebuilt from the database."""
        turn = Turn(commands)
        self.version += 1
        at, began = timers.now(), time.perf_counter()
        try:
            for command, future in commands:
                self._step(turn, command, future, at)
        except Exception:
            log.exception("a step failed; the state is rebuilt from the database")
            self._is_ahead = True
            self._reload_state()
            asyncio.get_running_loop().call_soon(self._try_recover)
            return False
        self.meters.turns["step"].observe(time.perf_counter() - began)
        self.conclude(turn)
        return True

    def _step(self, turn: Turn, command: Command, future: asyncio.Future[Any] | None, at: Moment) -> None:
        """Step the event of one command. A refusal is a normal answer: the state has not changed."""
        answer: Any
        try:
            event = command.event(self.state, self.store, at)
            effects = step(self.state, event)
            answer = command.after_step(effects, turn.changes, at)
            gather(turn.changes, effects, getattr(event, "uid", None), command.origin, at)
        except TransitionError:  # not a refusal: the state has changed in part
            raise
        except GflowError as error:
            answer, effects = error, []
            if future is None:
                log.error("refused: %s", error)
        if self._paranoid:
            check(self.state)
        turn.effects += effects
        if future is not None:
            turn.answers.append((future, answer))

    def conclude(self, turn: Turn) -> None:
        """Commit the turn; only then carry out its effects and answer."""
        try:
            self.persist(turn)
        except StoreError as error:
            self._enter_read_only(turn, error)
            return
        try:
            self.perform(turn)  # before the answers: GPUs are idle until it starts their jobs
        finally:
            self.answer(turn)

    def persist(self, turn: Turn) -> None:
        """Make the changes of a turn durable in one commit, before any effect or answer."""
        point("turn.before-commit")
        keep_counts(turn.changes, self.state)
        if turn.changes:
            began = time.perf_counter()
            self.store.commit(turn.changes)
            self.meters.turns["commit"].observe(time.perf_counter() - began)
        point("turn.after-commit")
        self.state.jobs.ended.clear()

    def answer(self, turn: Turn) -> None:
        """Answer the commands of the turn, and wake all tasks that wait for changes."""
        self.meters.update(turn.changes)
        for changed in self._change_sets:
            changed.update(turn.changes.jobs)
        if turn.changes.audit:
            self.wakeups.wake()
        for future, answer in turn.answers:
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        if turn.changes.bulk:
            self._finish_arrivals(turn.changes)
        if self.state.arriving:
            self._start_arrivals()
        self._end_waiters.wake(turn.changes.jobs)

    def _never_starts(self, key: JobKey) -> bool:
        """Whether this is a task of an array that ended, or is ending, before it started."""
        task = task_of(key)
        array = None if task is None else self.store.job(job_key(number_of(key)))
        if task is None or array is None or array.progress is None:
            return False
        return task in array.progress.pending

    def perform(self, turn: Turn) -> None:
        """Carry out the effects of a durable turn, and set the timers for the next deadline."""
        point("turn.before-effects")
        try:
            self._perform(turn.effects)
        finally:
            self.arm()
        point("turn.after-effects")

    # ------------------------------------------------------------ when the disk fails

    def look_at_store(self) -> None:
        """Check that the database file is in place, to notice its loss before the next commit."""
        if not self.read_only:
            try:
                self.store.check_in_place()
            except StoreError as error:
                self._enter_read_only(Turn([]), error)

    def _enter_read_only(self, turn: Turn, error: StoreError) -> None:
        """Refuse changes after a failed commit: rebuild the state, fail the answers, schedule a retry."""
        log.error("%s; changes are refused until it can be written", error)
        self.read_only = error.message
        self._read_only_hint = error.hint or "it continues by itself when the disk can be written again"
        self._is_ahead = True
        with suppress(StoreError):
            self._reload_state()
        for future, _ in turn.answers:
            if not future.done():
                future.set_exception(ReadOnly(error.message, hint=self._read_only_hint))
        self._backlog = [one for one in turn.commands if one[1] is None] + self._backlog
        asyncio.get_running_loop().call_later(RETRY_S, self._retry_commit)

    def _reload_state(self) -> None:
        if self._is_ahead:
            self.state = reload(self.state, self.store)
            self.version += 1
            self.meters.recount(self.state.jobs.values())
            self._is_ahead = False
            for first, record in self.store.unfinished().items():
                if isinstance(record, OpenSubmission) and record.closed:
                    self.mark_arrived(first)  # reloading put all of its jobs into the queue

    def _retry_commit(self) -> None:
        """Try a commit; if it works, accept changes again and process the backlog."""
        try:
            self._reload_state()
            self.store.commit(Changes(meta={"next_number": self.state.jobs.next_number}))
            self.recover()
        except StoreError:
            asyncio.get_running_loop().call_later(RETRY_S, self._retry_commit)
            return
        log.warning("the database can be written again")
        self.read_only = ""
        for command, future in self._backlog:
            self._add(command, future)
        self._backlog = []
        # Run a scheduling round: GPUs may have become free meanwhile.
        self.post(lambda at: known_gpus(self.state, at))

    # ------------------------------------------------------------ time

    def arm(self) -> None:
        """Set the timers to the next alarm and the next begin time."""
        due = next_boot_deadline(self.state)
        self._boot_timer.set(None if due is None else timers.of_kernel(due))
        self._wall_timer.set(next_wall_deadline(self.state))

    def _tick(self) -> None:
        self.post(lambda at: Tick(at=at))


def known_gpus(state: State, at: Moment) -> GpusSeen:
    """An event that reports the GPUs as the state has them already."""
    gpus = tuple(state.machine.gpus.values())
    return GpusSeen(
        at=at,
        gpus=gpus,
        blocked=state.machine.blocked,
        taken=state.machine.taken,
        trouble=state.machine.gpu_trouble,
    )
