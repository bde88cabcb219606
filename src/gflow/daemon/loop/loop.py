"""The loop: event -> step -> ONE commit -> effects -> answer. The only place where that happens.

Everything that is ready in one turn of asyncio shares one commit. The commit runs in this
thread: nothing can be answered before it anyway, and so whoever reads sees exactly what
is durable.

When a commit fails (disk full, read-only, broken), memory is ahead of the disk: it is rebuilt
from the disk, people are told, and the daemon takes no changes until a commit works again.
What the machine itself reported meanwhile, such as the end of a job, is kept and taken then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from gflow.core.effects import Accepted, AddAuditEntry, Effect, Keep, Ran, Save, Settled, Staged
from gflow.core.engine import step
from gflow.core.events import Event, GpusSeen, Tick
from gflow.core.forecast.calibration import FORETOLD
from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.invariants import check
from gflow.core.lifecycle.admin import QUOTAS, RESERVATIONS
from gflow.core.model import AuditEntry, Job, Moment
from gflow.core.policy import DRAINED, Drained
from gflow.core.queries.audit_log import FEW, group_entries
from gflow.core.state.fair_share import SHARES
from gflow.core.state.quotas import Quotas
from gflow.core.state.state import PART, State, next_alarm, next_look, restore
from gflow.daemon.loop import bulk, timers
from gflow.daemon.loop.commands import AuditCommand, Command, EventCommand, MetaCommand, Submitting
from gflow.daemon.loop.counters import Meters
from gflow.daemon.loop.timers import Alarm
from gflow.daemon.loop.turns import Places, Turns
from gflow.daemon.loop.wakeups import News
from gflow.errors import GflowError, ReadOnly, StoreError, TransitionError
from gflow.fault_points import point
from gflow.store.bulk import Intent, OpenSubmission
from gflow.store.open import WAY_OUT
from gflow.store.port import Changes, Store

log = logging.getLogger("gflow.loop")
TRY_AGAIN_S = 1.0

Waiting = tuple[Command, "asyncio.Future[Any] | None"]


class Turn(msgspec.Struct):
    """What one turn gathered before its commit."""

    wishes: list[Waiting]
    changes: Changes = msgspec.field(default_factory=Changes)
    effects: list[Effect] = msgspec.field(default_factory=list)
    answers: list[tuple[asyncio.Future[Any], Any]] = msgspec.field(default_factory=list)


class _Taken:
    """A submission that is being taken. It is dropped when nobody waits for it any more."""

    def __init__(self, wish: Submitting, future: asyncio.Future[Any]) -> None:
        self.wish, self.future = wish, future
        self._waiting = 0

    async def keys(self) -> tuple[JobKey, ...]:
        self._waiting += 1
        try:
            keys: tuple[JobKey, ...] = await asyncio.shield(self.future)
            return keys
        except asyncio.CancelledError:
            self.wish.is_dropped = self._waiting == 1
            raise
        finally:
            self._waiting -= 1


def _giving_back(place: Callable[[], None]) -> Callable[[asyncio.Future[Any]], None]:
    def give_back(future: asyncio.Future[Any]) -> None:
        place()
        if not future.cancelled():
            future.exception()  # nobody may be left to hear it, and that is no bug

    return give_back


class Loop:
    """Feeds the engine, commits what it decides, then lets it happen."""

    def __init__(
        self, state: State, store: Store, perform: Callable[[list[Effect]], None], *, paranoid: bool = False
    ) -> None:
        self.state = state
        # Counts what may have changed the state.
        self.version = 0
        self.store = store
        # Why nothing can be written at the moment; empty while all is well.
        self.read_only = ""
        # What can be done about it.
        self._way_out = ""
        self.news = News()
        self.meters = Meters()
        self.meters.recount(state.jobs.values())
        self._perform = perform
        self._paranoid = paranoid
        self._inbox: list[Waiting] = []
        self._backlog: list[Waiting] = []
        # Whether memory has what the disk has not, because even reading failed.
        self._is_ahead = False
        self._tokens: dict[tuple[int, str], _Taken] = {}
        self._waiters: dict[JobKey, list[asyncio.Future[Job]]] = {}
        self._noticing: list[set[JobKey]] = []
        # What is done in parts: one part at a time, and few requests of each user; who waits for the last job
        # of a submission to arrive, by its first number; the task that lets jobs arrive, and those that go on
        # with what was begun; which of that is being done.
        self.turns = Turns()
        self._places = Places()
        self._arrivals: dict[int, asyncio.Future[None]] = {}
        self._seeing_in: asyncio.Task[None] | None = None
        self._resumed: set[asyncio.Task[None]] = set()
        self.busy: set[int] = set()
        self._intents = -1
        self._limits = Alarm(time.CLOCK_BOOTTIME, self._tick)
        self._begins = Alarm(time.CLOCK_REALTIME, self._tick)

    # ------------------------------------------------------------ in

    def post(self, make: Callable[[Moment], Event]) -> None:
        """An event of the machine's own, which nobody waits for and which must not get lost."""
        self._add(EventCommand(make), None)

    def note(self, what: str, detail: str) -> None:
        """A line of the audit about the daemon itself."""
        self._add(AuditCommand(what, detail), None)

    def keep(self, values: dict[str, str | int]) -> None:
        """Values of the daemon's own that must survive it."""
        self._add(MetaCommand(values), None)

    async def ask(self, make: Callable[[Moment], Event], origin: str = "daemon") -> None:
        """An event whose sender wants to know that it is durable."""
        await self.wish(EventCommand(make, origin))

    async def submit(self, wish: Submitting) -> tuple[JobKey, ...]:
        """The keys of the submission's jobs; those it made before, if its token is known."""
        place = await self._places.take(wish.uid) if len(wish.jobs) > PART else None
        try:
            name = (wish.uid, wish.token)
            while (taken := self._tokens.get(name)) is not None and taken.wish.is_dropped:
                await asyncio.wait([taken.future])  # it is being given up; this is the client's next try
            known = self.store.submission(*name)
            if known is not None:
                return known
            if taken is None:
                taken = self._tokens[name] = _Taken(wish, self._taken(wish))
                taken.future.add_done_callback(lambda _: self._tokens.pop(name, None))
                if place is not None:
                    taken.future.add_done_callback(_giving_back(place))
                    place = None
        finally:
            if place is not None:
                place()
        return await taken.keys()

    def _taken(self, wish: Submitting) -> asyncio.Future[Any]:
        """The keys of its jobs, in one turn or in many."""
        if len(wish.jobs) <= PART:
            return self._promise(wish)
        self._check_writable()
        return asyncio.ensure_future(bulk.submit(self, wish))

    async def do(self, deed: bulk.Wanted, keys: Sequence[JobKey]) -> None:
        """Do something to many jobs, in many turns."""
        place = await self._places.take(deed.uid)
        try:
            self._check_writable()
        except ReadOnly:
            place()
            raise
        doing = asyncio.ensure_future(bulk.do(self, deed, keys))
        doing.add_done_callback(_giving_back(place))
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            deed.is_dropped = True
            raise

    async def ended(self, key: JobKey) -> Job | None:
        """The job once it is final; None if there never was one."""
        if not self.state.is_active(key):
            if self._never_starts(key):
                return await self.ended(job_key(number_of(key)))
            return self.store.job(key)
        future: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(key, [])
        waiters.append(future)
        try:
            return await future
        finally:
            waiters.remove(future)
            if not waiters and self._waiters.get(key) is waiters:
                del self._waiters[key]

    async def wish(self, wish: Command) -> Any:
        """Let it happen; the answer comes when it is durable."""
        return await self._promise(wish)

    def _promise(self, wish: Command) -> asyncio.Future[Any]:
        self._check_writable()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._add(wish, future)
        return future

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnly(self.read_only, hint=self._way_out)

    # ------------------------------------------------------------ what takes many turns

    def arrival(self, first: int) -> asyncio.Future[None]:
        """Done when all jobs of this submission, which is about to be closed, are where they wait."""
        future = self._arrivals[first] = asyncio.get_running_loop().create_future()
        return future

    def has_arrived(self, first: int) -> None:
        future = self._arrivals.pop(first, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _tell_arrived(self, changes: Changes) -> None:
        for number, what in changes.bulk.items():
            if what is None:
                self.has_arrived(number)

    def forget_arrival(self, first: int) -> None:
        self._arrivals.pop(first, None)

    def next_intent(self) -> int:
        """A number for what is to be done to many jobs; submissions have positive ones."""
        self._intents = min([self._intents, *self.store.unfinished()]) - 1
        return self._intents

    def recover(self) -> None:
        """Finish or undo what was begun in parts, by an earlier daemon or before the disk failed."""
        changes = bulk.recovered(self.store, set(self.state.open))
        if changes:
            self.store.commit(changes)
        for number, one in self.store.unfinished().items():
            if isinstance(one, Intent) and number not in self.busy:
                self.busy.add(number)
                task = asyncio.ensure_future(bulk.resume(self, number, one))
                self._resumed.add(task)
                task.add_done_callback(self._resumed.discard)
        self._see_to_arrivals()

    def _recover_again(self) -> None:
        try:
            self.recover()
        except StoreError as error:  # the next commit finds out, too
            log.error("%s; what was begun in parts is left for later", error)

    def _see_to_arrivals(self) -> None:
        if self.state.arriving and (self._seeing_in is None or self._seeing_in.done()):
            self._seeing_in = asyncio.ensure_future(self._see_in())

    async def _see_in(self) -> None:
        try:
            await bulk.see_in(self)
        except ReadOnly:
            pass  # what is closed is durable, and arrives when the disk can be written again
        except GflowError as error:
            log.error("jobs cannot arrive: %s", error)
            asyncio.get_running_loop().call_later(TRY_AGAIN_S, self._see_to_arrivals)

    def _add(self, wish: Command, future: asyncio.Future[Any] | None) -> None:
        if self.read_only:
            self._backlog.append((wish, future))
            return
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._run_turn)
        self._inbox.append((wish, future))

    @contextmanager
    def noticing(self) -> Iterator[set[JobKey]]:
        """A set that collects the jobs that change from now on."""
        changed: set[JobKey] = set()
        self._noticing.append(changed)
        try:
            yield changed
        finally:
            # By identity: two empty sets are equal.
            self._noticing = [other for other in self._noticing if other is not changed]

    # ------------------------------------------------------------ the turn

    def _run_turn(self) -> None:
        wishes, self._inbox = self._inbox, []
        if self._try_turn(wishes):
            return
        for wish in wishes:  # one of them hit a bug: the others must not suffer for it
            if not self._try_turn([wish]) and wish[1] is not None and not wish[1].done():
                wish[1].set_exception(GflowError("this request hit a bug in gflow; the daemon's log has it"))

    def _try_turn(self, wishes: list[Waiting]) -> bool:
        """One turn; False if the engine failed in the middle, and then memory is what the disk has."""
        turn = Turn(wishes)
        self.version += 1
        at, began = timers.now(), time.perf_counter()
        try:
            for wish, future in wishes:
                self._take(turn, wish, future, at)
        except Exception:
            log.exception("a step failed; the state is rebuilt from the database")
            self._is_ahead = True
            self._go_back()
            asyncio.get_running_loop().call_soon(self._recover_again)
            return False
        self.meters.turns["step"].observe(time.perf_counter() - began)
        self.conclude(turn)
        return True

    def _take(self, turn: Turn, wish: Command, future: asyncio.Future[Any] | None, at: Moment) -> None:
        """Step one event. A refusal is an answer like any other: the state has not changed."""
        answer: Any
        try:
            event = wish.event(self.state, self.store, at)
            effects = step(self.state, event)
            answer = wish.took(effects, turn.changes, at)
            _gather(turn.changes, effects, getattr(event, "uid", None), wish.origin, at)
        except TransitionError:  # not a refusal: something has changed already
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
        """Make the turn durable; only then tell anybody and do anything."""
        try:
            self.persist(turn)
        except StoreError as error:
            self._poisoned(turn, error)
            return
        try:
            self.perform(turn)  # first: a free slot waits for it
        finally:
            self.answer(turn)

    def persist(self, turn: Turn) -> None:
        point("turn.before-commit")
        keep_counts(turn.changes, self.state)
        if turn.changes:
            began = time.perf_counter()
            self.store.commit(turn.changes)
            self.meters.turns["commit"].observe(time.perf_counter() - began)
        point("turn.after-commit")
        self.state.ended.clear()

    def answer(self, turn: Turn) -> None:
        """Tell everybody who wants to know what has changed."""
        self.meters.saw(turn.changes)
        for changed in self._noticing:
            changed.update(turn.changes.jobs)
        if turn.changes.audit:
            self.news.tell()
        for future, answer in turn.answers:
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        if turn.changes.bulk:
            self._tell_arrived(turn.changes)
        if self.state.arriving:
            self._see_to_arrivals()
        self._tell_ends(turn.changes)

    def _tell_ends(self, changes: Changes) -> None:
        if not self._waiters:
            return
        for key, job in changes.jobs.items():
            if job.is_final:
                self._tell(key, job)
                if job.is_array:  # those who still wait for tasks of it wait for some that never started
                    for task in [task for task in self._waiters if number_of(task) == job.number]:
                        self._tell(task, job)

    def _tell(self, key: JobKey, job: Job) -> None:
        for waiter in list(self._waiters.pop(key, ())):
            if not waiter.done():
                waiter.set_result(job)

    def _never_starts(self, key: JobKey) -> bool:
        """Whether this is a task of an array that ended, or is ending, before it started."""
        task = task_of(key)
        array = None if task is None else self.store.job(job_key(number_of(key)))
        if task is None or array is None or array.progress is None:
            return False
        return task in array.progress.pending

    def perform(self, turn: Turn) -> None:
        point("turn.before-effects")
        try:
            self._perform(turn.effects)
        finally:
            self.arm()
        point("turn.after-effects")

    # ------------------------------------------------------------ when the disk fails

    def look_at_store(self) -> None:
        """Notice that the database is gone before a commit does."""
        if not self.read_only:
            try:
                self.store.check_in_place()
            except StoreError as error:
                self._poisoned(Turn([]), error)

    def _poisoned(self, turn: Turn, error: StoreError) -> None:
        """The commit failed, so memory is ahead of the disk: go back to what the disk has."""
        log.error("%s; no changes are taken until it can be", error)
        self.read_only = error.message
        self._way_out = error.hint or "it goes on by itself when the disk can be written again"
        self._is_ahead = True
        with suppress(StoreError):
            self._go_back()
        for future, _ in turn.answers:
            if not future.done():
                future.set_exception(ReadOnly(error.message, hint=self._way_out))
        self._backlog = [wish for wish in turn.wishes if wish[1] is None] + self._backlog
        asyncio.get_running_loop().call_later(TRY_AGAIN_S, self._try_again)

    def _go_back(self) -> None:
        if self._is_ahead:
            self.state = reload(self.state, self.store)
            self.version += 1
            self.meters.recount(self.state.jobs.values())
            self._is_ahead = False
            for first, bulk_ in self.store.unfinished().items():
                if isinstance(bulk_, OpenSubmission) and bulk_.closed:
                    self.has_arrived(first)  # its jobs were all loaded

    def _try_again(self) -> None:
        """See whether a commit works; if so, take what has happened meanwhile."""
        try:
            self._go_back()
            self.store.commit(Changes(meta={"next_number": self.state.next_number}))
            self.recover()
        except StoreError:
            asyncio.get_running_loop().call_later(TRY_AGAIN_S, self._try_again)
            return
        log.warning("the database can be written again")
        self.read_only = ""
        for wish, future in self._backlog:
            self._add(wish, future)
        self._backlog = []
        self.post(lambda at: gpus_again(self.state, at))  # a round: something may have become free

    # ------------------------------------------------------------ time

    def arm(self) -> None:
        """Wake up when the next alarm or begin time is due."""
        due = next_alarm(self.state)
        self._limits.set(None if due is None else timers.of_kernel(due))
        self._begins.set(next_look(self.state))

    def _tick(self) -> None:
        self.post(lambda at: Tick(at=at))


def _gather(changes: Changes, effects: list[Effect], uid: int | None, origin: str, at: Moment) -> None:
    """What of these effects the commit must hold."""
    lines: list[AuditEntry] = []
    for effect in effects:
        if isinstance(effect, Save):
            changes.jobs[effect.job.key] = effect.job
        elif isinstance(effect, Ran):
            changes.attempts.append(effect)
        elif isinstance(effect, Staged):
            changes.staged.append(effect.job)
        elif isinstance(effect, Settled):
            changes.bulk[effect.first] = None
        elif isinstance(effect, Accepted):
            changes.new.update(effect.keys)
        elif isinstance(effect, AddAuditEntry):
            who, where = (uid, origin) if effect.is_personal else (None, "daemon")
            if effect.origin:
                who, where = effect.uid, effect.origin
            lines.append(AuditEntry(at.wall, effect.key, who, where, effect.what, effect.detail))
        elif isinstance(effect, Keep):
            changes.meta[effect.name] = effect.value
            lines.append(AuditEntry(at.wall, None, uid, origin, effect.name, effect.value))
    changes.audit += group_entries(lines) if len(lines) > FEW else lines


def keep_counts(changes: Changes, state: State) -> None:
    """What the engine counts goes with the commit. Nobody's doing, so no line of the audit."""
    if changes.new or changes.bulk:
        changes.meta["next_number"] = state.next_number
    if state.shares.changed:
        changes.meta[SHARES] = state.shares.record()
    if state.foretold.is_changed:
        changes.meta[FORETOLD] = state.foretold.text()


def gpus_again(state: State, at: Moment) -> GpusSeen:
    """The GPUs as they are known already."""
    gpus = tuple(state.machine.gpus.values())
    return GpusSeen(
        at=at,
        gpus=gpus,
        blocked=state.machine.blocked,
        taken=state.machine.taken,
        trouble=state.machine.gpu_trouble,
    )


def reload(old: State, store: Store) -> State:
    """A state of the same machine, filled from what the store has."""
    state = State(cpus=old.machine.cpus, memory_mib=old.machine.memory_mib, policy=old.policy)
    state.part = old.part
    loaded = store.load()
    allowed = loaded.meta.get("allowed_gpus")
    if allowed is not None and not old.policy.gpus_win:
        chosen = frozenset(int(index) for index in str(allowed).split(",") if index.isdecimal())
        state.machine.allowed = None if allowed == "all" else chosen
    _recall_decisions(state, loaded.meta)
    _recall_counts(state, loaded.meta)
    restore(
        state,
        loaded.jobs,
        loaded.outcomes,
        loaded.recent,
        loaded.next_number,
        timers.now(),
        loaded.finished,
    )
    state.claimed = bulk.claimed_by(loaded.bulk)
    state.machine.foreign, state.machine.freed_at = old.machine.foreign, old.machine.freed_at
    state.machine.blocked, state.machine.taken, state.machine.gpu_trouble = (
        old.machine.blocked,
        old.machine.taken,
        old.machine.gpu_trouble,
    )
    state.machine.gpu_names = str(loaded.meta.get("gpu_names", ""))
    state.machine.leaving, state.machine.reclaimed = old.machine.leaving, old.machine.reclaimed
    state.machine.most_runs, state.alarms.resume_at = old.machine.most_runs, old.alarms.resume_at
    state.machine.stalled, state.machine.stalls = old.machine.stalled, old.machine.stalls
    state.unused = {key: idle for key, idle in old.unused.items() if key in state.jobs}
    state.stuck = {key: detail for key, detail in old.stuck.items() if key in state.jobs}
    state.machine.see_gpus(old.machine.gpus.values())
    for key, job in old.jobs.items():  # what jobs said since it last became durable
        if job.headway is not None and key in state.jobs and state.jobs[key].attempt == job.attempt:
            state.jobs[key].headway = job.headway
    return state


def _recall_decisions(state: State, meta: Mapping[str, str | int]) -> None:
    """What people decided, and faults they have not forgiven yet: without these, nothing may start."""

    def say_faults(text: str) -> None:
        state.machine.faults = msgspec.json.decode(text, type=dict[str, str])

    def say_drained(text: str) -> None:
        state.machine.drained = msgspec.json.decode(text, type=Drained)

    takers: dict[str, Callable[[str], None]] = {
        DRAINED: say_drained,
        QUOTAS: lambda text: state.ledger.say(msgspec.json.decode(text, type=Quotas)),
        RESERVATIONS: state.reserved.recall,
        "gpu_faults": say_faults,
    }
    for name, take in takers.items():
        try:
            if name in meta:
                take(str(meta[name]))
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"the record {name!a} in the database is damaged: {error}", hint=WAY_OUT
            ) from error


def _recall_counts(state: State, meta: Mapping[str, str | int]) -> None:
    """What was only counted. What cannot be read is counted anew: no job depends on it."""
    for name, take in ((SHARES, state.shares.recall), (FORETOLD, state.foretold.recall)):
        try:
            if name in meta:
                take(str(meta[name]))
        except msgspec.MsgspecError as error:
            log.warning("the record %s in the database cannot be read and begins anew: %s", name, error)
