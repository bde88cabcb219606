"""Requests about many jobs are cut into turns, and are still all or nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager

import msgspec
import pytest

from gflow.core.effects import Start
from gflow.core.events import Cancel, Exited, Hold, Release, Update
from gflow.core.ids import job_key
from gflow.core.model import JobState
from gflow.core.policy import Policy
from gflow.core.queries.job_filter import Filter
from gflow.core.state import state as core_state
from gflow.core.state.quotas import Limits, Quotas
from gflow.core.state.state import PART, State
from gflow.daemon.loop import bulk_actions, bulk_submission
from gflow.daemon.loop.bulk_actions import BulkAction
from gflow.daemon.loop.commands import SubmitCommand
from gflow.daemon.loop.loop import Loop
from gflow.daemon.loop.stored_state import reload
from gflow.daemon.loop.turns import MAX_PLACES, Turns
from gflow.errors import NotFound, ReadOnly, Refused, StoreError
from gflow.store.bulk import Intent, OpenSubmission, keys_of, runs_of
from gflow.store.memory import MemoryStore
from gflow.store.port import Changes
from gflow.store.sqlite import SqliteStore
from gflow.wire.requests import ParsedJob, References

from .builders import job, spec

MANY = 3 * PART + 7


class Cut(BaseException):
    """The daemon dies here."""


class Counting(SqliteStore):
    """Counts how many jobs each commit is about; can be told to fail."""

    def __init__(self, path):
        super().__init__(path)
        self.sizes = []
        self.fails = False

    def commit(self, changes):
        if self.fails:
            raise StoreError("the database cannot be written: disk full")
        super().commit(changes)
        self.sizes.append(len(changes.jobs) + len(changes.staged))


@pytest.fixture
def store(tmp_path):
    made = Counting(tmp_path / "gflow.db")
    yield made
    made.close()


def wanted(count, token="token-of-many", references=References(), uid=1001, user="ann", **fields):
    """A submission of so many jobs, no two alike."""
    jobs = [
        ParsedJob(spec=spec(command=("true", str(n)), **fields), references=references, blobs={})
        for n in range(count)
    ]
    return SubmitCommand(uid, user, token, jobs, "cli")


def fresh(store, **more):
    return Loop(
        reload(State(cpus=1, memory_mib=1024, **more), store), store, lambda effects: None, paranoid=True
    )


def play(store, scene, **more):
    async def run():
        loop = fresh(store, **more)
        loop.recover()
        return await asyncio.wait_for(scene(loop), 60)

    return asyncio.run(run())


@contextmanager
def dying_at(monkeypatch, name, nth=1):
    """The next daemon ends the nth time that it passes the point."""
    left = [nth]

    def point(passed):
        if passed == name:
            left[0] -= 1
            if not left[0]:
                raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(bulk_submission, "point", point)
        patched.setattr(bulk_actions, "point", point)
        yield


def death(store, scene):
    with pytest.raises(Cut):
        play(store, scene)


# ---------------------------------------------------------------- submissions


def test_no_turn_takes_more_than_a_part(store):
    async def scene(loop):
        steps = []
        loop.meters.turns["step"].observe = steps.append
        keys = await loop.submit(wanted(MANY))
        assert keys == tuple(job_key(number) for number in range(1, MANY + 1))
        return keys

    play(store, scene)
    assert len(list(store.jobs(active=True))) == MANY
    assert max(store.sizes) <= PART + 1
    assert [line.what for line in store.audit_of(job_key(MANY))] == ["submitted"]


def test_a_submission_of_one_part_takes_one_commit(store):
    async def scene(loop):
        before = len(store.sizes)
        await loop.submit(wanted(PART))
        return store.sizes[before:]

    assert play(store, scene) == [PART]


def test_jobs_are_seen_all_at_once(store):
    async def scene(loop):
        task = asyncio.ensure_future(loop.submit(wanted(MANY)))
        seen = set()
        while not task.done():
            seen.add((len(loop.state.jobs), len(store.between(1, MANY)), len(list(store.jobs(active=True)))))
            assert loop.state.jobs.recent.get(1001) is None or len(loop.state.jobs) == MANY
            await asyncio.sleep(0)
        return seen

    assert play(store, scene) == {(0, 0, 0), (MANY, MANY, MANY)}


@pytest.mark.parametrize(("name", "nth"), [("bulk.opened", 1), ("bulk.staged", 1), ("bulk.staged", 4)])
def test_submission_not_closed_at_crash_leaves_nothing(monkeypatch, store, name, nth):
    with dying_at(monkeypatch, name, nth):
        death(store, lambda loop: loop.submit(wanted(MANY)))
    assert store.job(job_key(1)) is None, "hidden before anything is put in order"

    async def scene(loop):
        assert not loop.state.jobs and store.unfinished() == {}
        assert store.submission(1001, "token-of-many") is None
        assert store._rows("SELECT count(*) FROM jobs").__next__() == (0,)
        again = await loop.submit(wanted(MANY))
        return again[0], loop.state.accounting.active_jobs

    assert play(store, scene) == (job_key(MANY + 1), Counter({1001: MANY})), "numbers are not given out twice"


@pytest.mark.parametrize(("name", "nth"), [("bulk.closed", 1), ("bulk.arrived", 1), ("bulk.arrived", 3)])
def test_submission_closed_before_crash_is_kept(monkeypatch, store, name, nth):
    with dying_at(monkeypatch, name, nth), pytest.raises((Cut, TimeoutError)):
        play(store, lambda loop: asyncio.wait_for(loop.submit(wanted(MANY)), 3))

    async def scene(loop):
        assert len(loop.state.jobs) == MANY and not loop.state.arriving
        assert store.unfinished() == {}
        return await loop.submit(wanted(MANY))

    assert play(store, scene) == tuple(job_key(number) for number in range(1, MANY + 1))
    for number in (1, PART, MANY):
        told = [(line.what, line.uid, line.origin) for line in store.audit_of(job_key(number))]
        assert told[0] == ("submitted", 1001, "cli") and [what for what, *_ in told].count("submitted") == 1


def test_a_retry_in_the_middle_waits_for_the_same_jobs(store):
    async def scene(loop):
        first = asyncio.ensure_future(loop.submit(wanted(MANY)))
        while not loop.state.open:
            await asyncio.sleep(0)
        return await asyncio.gather(first, loop.submit(wanted(MANY)))

    one, other = play(store, scene)
    assert one == other and len(list(store.jobs(active=True))) == MANY


def test_concurrent_submissions_cannot_exceed_a_limit(store):
    async def scene(loop):
        tasks = [loop.submit(wanted(MANY, token=f"token-{n}")) for n in range(2)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [tuple, Refused]
        return len(loop.state.jobs), loop.state.open

    assert play(store, scene, policy=Policy(most_jobs=MANY + PART)) == (MANY, {})
    quotas = Quotas(users={"ann": Limits(max_queued_jobs=2 * MANY)})

    async def more(loop):
        await asyncio.gather(loop.submit(wanted(MANY, token="token-3")), return_exceptions=True)
        with pytest.raises(Refused, match="quota"):
            await loop.submit(wanted(MANY, token="token-4"))

    play(store, more, policy=Policy(quotas=quotas))


def test_a_refusal_in_a_later_part_leaves_nothing(store):
    async def scene(loop):
        command = wanted(MANY)
        command.add([ParsedJob(spec=spec(cpus=99), references=References(), blobs={})])
        with pytest.raises(Refused, match="99 CPUs"):
            await loop.submit(command)
        with pytest.raises(NotFound):
            await loop.submit(wanted(MANY, token="token-2", references=References(("4711",))))
        state = loop.state
        assert (state.jobs, state.open, state.accounting.active_jobs, state.accounting.quota_usage.bytes) == (
            {},
            {},
            {},
            {},
        )
        assert store.unfinished() == {}
        assert next(store._rows("SELECT count(*) FROM jobs")) == (0,)

    play(store, scene)


def test_a_disk_that_fails_in_the_middle_leaves_nothing(store):
    async def scene(loop):
        task = asyncio.ensure_future(loop.submit(wanted(MANY)))
        while len(store.sizes) < 3:
            await asyncio.sleep(0)
        store.fails = True
        with pytest.raises(ReadOnly):
            await task
        assert loop.read_only and not loop.state.jobs
        store.fails = False
        while loop.read_only:
            await asyncio.sleep(0.05)
        assert store.unfinished() == {} and next(store._rows("SELECT count(*) FROM jobs")) == (0,)
        await loop.submit(wanted(MANY))
        return len(loop.state.jobs)

    assert play(store, scene) == MANY


def test_parents_that_end_while_their_children_come(store):
    async def scene(loop):
        await loop.submit(wanted(2, token="parents"))  # one starts
        task = asyncio.ensure_future(loop.submit(wanted(MANY, references=References(("1",)))))
        while not loop.state.open:
            await asyncio.sleep(0)
        loop.post(lambda at: Exited(at=at, key=job_key(1), attempt=1, code=3))
        results = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(results[0], (tuple, Refused))
        while loop.state.arriving:
            await asyncio.sleep(0)
        return [job for job in loop.state.jobs.values() if job.spec.parents]

    assert play(store, scene) == []


# ---------------------------------------------------------------- what is done to many


def submitted(store, **fields):
    async def scene(loop):
        return await loop.submit(wanted(MANY, **fields))

    return play(store, scene)


ACTIONS = {
    "cancel": (BulkAction(Cancel, 1001, "cli", is_operator=False, now=False), JobState.CANCELLED),
    "hold": (BulkAction(Hold, 1001, "cli", is_operator=False), JobState.HOLD),
    "update": (
        BulkAction(Update, 1001, "cli", is_operator=False, fields={"priority": 99}, extend_s=0, group=0),
        JobState.QUEUED,
    ),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_bulk_change_is_done_in_parts(store, name):
    keys = submitted(store, allow_unsatisfiable=True, cpus=9)
    action, state = ACTIONS[name]
    del store.sizes[:]
    play(store, lambda loop: loop.apply_action(action, keys))
    jobs = list(store.jobs(active=False))
    assert {job.state for job in jobs} == {state} and len(jobs) == MANY
    assert name != "update" or {job.spec.priority for job in jobs} == {99}
    assert max(store.sizes) <= PART and store.unfinished() == {}


@pytest.mark.parametrize("point", ["bulk.intended", "bulk.done-part"])
@pytest.mark.parametrize("name", ACTIONS)
def test_bulk_change_continues_after_crash(monkeypatch, store, name, point):
    monkeypatch.setattr(bulk_actions, "MANY", PART // 2)
    keys = submitted(store, allow_unsatisfiable=True, cpus=9)
    action, state = ACTIONS[name]
    with dying_at(monkeypatch, point):
        death(store, lambda loop: loop.apply_action(action, keys))
    assert [type(one) for one in store.unfinished().values()] == [Intent]

    async def scene(loop):
        assert loop.state.claimed
        while store.unfinished():
            await asyncio.sleep(0)
        return {job.state for job in store.jobs(active=False)}, loop.state.claimed

    assert play(store, scene) == ({state}, set())
    if name == "update":
        assert {job.spec.priority for job in store.jobs(active=True)} == {99}


def test_non_idempotent_bulk_change_is_done_once(monkeypatch, store):
    keys = submitted(store, allow_unsatisfiable=True, cpus=9, time_limit_s=60)
    action = BulkAction(Update, 1001, "cli", is_operator=False, fields={}, extend_s=60, group=0)
    with dying_at(monkeypatch, "bulk.done-part", 2):
        death(store, lambda loop: loop.apply_action(action, keys))

    async def scene(loop):
        assert keys[0] not in loop.state.claimed and keys[-1] in loop.state.claimed
        while store.unfinished():
            await asyncio.sleep(0)

    play(store, scene)
    assert {job.spec.time_limit_s for job in store.jobs(active=True)} == {120}


def test_a_refusal_of_one_changes_none(store):
    keys = submitted(store)  # the first runs

    async def scene(loop):
        assert loop.state.jobs[keys[0]].state is JobState.RUNNING
        with pytest.raises(Refused, match="is running"):
            await loop.apply_action(ACTIONS["hold"][0], [*keys[1:], keys[0]])
        await asyncio.sleep(0.01)
        return {job.state for job in loop.state.jobs.values()}, loop.state.claimed, store.unfinished()

    assert play(store, scene) == ({JobState.RUNNING, JobState.QUEUED}, set(), {})


def test_claimed_job_does_not_start(store):
    keys = submitted(store)
    started = []

    async def scene(loop):
        loop._perform = lambda effects: started.extend(e.key for e in effects if isinstance(e, Start))
        task = asyncio.ensure_future(loop.apply_action(ACTIONS["cancel"][0], keys[1:]))
        while not store.unfinished():
            await asyncio.sleep(0)
        loop.post(lambda at: Exited(at=at, key=keys[0], attempt=1, code=0))
        await task
        return len(loop.state.jobs)

    assert play(store, scene) == 0
    assert started == []


def test_jobs_that_are_over_by_then_are_left_alone(store):
    keys = submitted(store, allow_unsatisfiable=True, cpus=9)

    async def scene(loop):
        task = asyncio.ensure_future(loop.apply_action(ACTIONS["hold"][0], keys))
        while not store.unfinished():
            await asyncio.sleep(0)
        await loop.ask(lambda at: Cancel(at=at, uid=1001, keys=(keys[-1],)))
        await task
        return Counter(job.state for job in store.jobs(active=False))

    assert play(store, scene) == {JobState.HOLD: MANY - 1, JobState.CANCELLED: 1}


def test_claim_on_a_job_that_ended_meanwhile_is_dropped(store):
    first, *others = submitted(store)

    async def scene(loop):
        task = asyncio.ensure_future(loop.apply_action(ACTIONS["cancel"][0], [*others, first]))
        while not store.unfinished():
            await asyncio.sleep(0)
        await loop.ask(lambda at: Exited(at=at, key=first, attempt=1, code=0))
        assert first in loop.state.claimed and first not in loop.state.jobs
        await task
        return loop.state.claimed, {job.state for job in store.jobs(active=False)}

    assert play(store, scene) == (set(), {JobState.FINISHED, JobState.CANCELLED})


def test_held_jobs_are_released_in_parts(store):
    keys = submitted(store, hold=True, allow_unsatisfiable=True, cpus=9)
    action = BulkAction(Release, 1001, "cli", is_operator=False, begin_at=None)
    play(store, lambda loop: loop.apply_action(action, keys))
    assert {job.state for job in store.jobs(active=True)} == {JobState.QUEUED}


# ---------------------------------------------------------------- children


@pytest.mark.parametrize(("code", "left"), [(0, MANY), (1, 0)])
def test_children_of_an_ended_parent_are_updated_in_parts(store, code, left):
    async def scene(loop):
        await loop.submit(wanted(1, token="the-parent"))
        await loop.submit(wanted(MANY, references=References(("1",))))
        del store.sizes[:]
        await loop.ask(lambda at: Exited(at=at, key=job_key(1), attempt=1, code=code))
        while loop.state.arriving:
            await asyncio.sleep(0)
        assert max(store.sizes) <= PART + 2
        return len(loop.state.jobs), len(loop.state.dependencies.waits)

    assert play(store, scene) == (left, 0)


def test_cut_off_of_children_continues_after_crash(store):
    async def scene(loop):
        await loop.submit(wanted(1, token="the-parent"))
        await loop.submit(wanted(MANY, references=References(("1",))))
        await loop.ask(lambda at: Exited(at=at, key=job_key(1), attempt=1, code=1))
        raise Cut

    death(store, scene)
    assert 0 < len(list(store.jobs(active=True))) <= MANY

    async def after(loop):
        while loop.state.arriving:
            await asyncio.sleep(0)
        return len(loop.state.jobs), {str(job.reason) for job in store.jobs(active=False)} - {"ExitCode:1"}

    assert play(store, after) == (0, {"DependencyFailed:1"})


# ---------------------------------------------------------------- the store


@pytest.mark.parametrize("make", [MemoryStore, None], ids=["memory", "sqlite"])
def test_open_submission_is_invisible_until_closed(tmp_path, make):
    store = make() if make else SqliteStore(tmp_path / "seen.db")
    record = OpenSubmission(2, 3, 1001, "cli")
    store.commit(Changes(jobs={job_key(1): job(1)}, new={job_key(1)}))
    store.commit(Changes(staged=[job(2), job(3), job(4)], bulk={2: record}))

    def seen():
        found = [store.job(job_key(number)) is not None for number in range(1, 5)]
        listed = [one.number for one in store.jobs(active=True)], store.between(1, 9), store.load().recent
        if make is None:
            reader = store.reader()
            rows = reader.page(Filter(), -1, 0, newest=False), reader.recent(Filter(), 10)
            assert [len(some) for some in rows] == [reader.count(Filter()) for _ in rows] == [sum(found)] * 2
            reader.close()
        return sum(found), *(len(some) for some in listed)

    assert seen() == (1, 1, 1, 1)
    store.commit(Changes(bulk={2: msgspec.structs.replace(record, closed=True)}))
    assert seen() == (4, 4, 4, 4)
    assert [key for key, _ in store.unaudited(record)] == [job_key(2), job_key(3), job_key(4)]
    store.commit(Changes(discarded=[record.span], bulk={2: None}))
    assert (seen(), store.unfinished()) == ((1, 1, 1, 1), {})
    store.close()


def test_unfinished_work_that_is_damaged_is_said(tmp_path):
    store = SqliteStore(tmp_path / "damaged.db")
    store._db.execute("INSERT INTO bulk (id, data) VALUES (7, '{}')")
    store.close()
    with pytest.raises(StoreError, match="record 7 of unfinished work"):
        SqliteStore(tmp_path / "damaged.db")


# ---------------------------------------------------------------- small things


def test_keys_are_kept_as_runs():
    keys = [job_key(1), job_key(2), job_key(3), job_key(7), job_key(9, 4), job_key(9, 5), job_key(9, 6)]
    runs = runs_of(keys)
    assert len(runs) == 3 and list(keys_of(runs)) == keys
    assert list(keys_of(runs_of([]))) == [] and list(keys_of(runs_of([job_key(5)]))) == [job_key(5)]


def test_an_open_submission_knows_its_keys():
    assert OpenSubmission(3, 2, 1, "cli").span == (job_key(3), job_key(4))


def test_the_part_is_the_one_of_the_engine():
    assert bulk_submission.PART == bulk_actions.PART == core_state.PART == State(cpus=1, memory_mib=1).part


# ---------------------------------------------------------------- turns, and clients that hang up


def test_bulk_requests_of_users_take_turns_part_by_part(store):
    """One user has ten under way; the other waits for as many parts as its own request has, not for ten."""

    async def scene(loop):
        many = [asyncio.ensure_future(loop.submit(wanted(MANY, token=f"token-{n}"))) for n in range(10)]
        while not store.sizes:
            await asyncio.sleep(0)
        before = len(store.sizes)
        await loop.submit(wanted(MANY, token="token-of-bob", uid=1002, user="bob"))
        commits = len(store.sizes) - before
        assert not all(one.done() for one in many)
        await asyncio.gather(*many)
        return commits

    own = 1 + 4 + 1 + 4  # open, stage, close, arrive
    assert play(store, scene) <= 4 * own
    assert len(list(store.jobs(active=True))) == 11 * MANY


def test_small_submission_arrives_before_large_one(store):
    async def scene(loop):
        large = asyncio.ensure_future(loop.submit(wanted(20 * PART, token="token-large")))
        while not loop.state.arriving:
            await asyncio.sleep(0)
        await loop.submit(wanted(MANY, token="token-of-bob", uid=1002, user="bob"))
        left = len(loop.state.arriving)
        await large
        return left

    assert play(store, scene) > 0


def test_two_bulk_requests_of_a_user_are_under_way_at_once(store):
    async def scene(loop):
        many = [asyncio.ensure_future(loop.submit(wanted(MANY, token=f"token-{n}"))) for n in range(6)]
        seen = set()
        while not all(one.done() for one in many):
            seen.add(len(loop.state.open))
            await asyncio.sleep(0)
        return seen

    assert max(play(store, scene)) == MAX_PLACES


def test_submission_of_a_client_that_hung_up_leaves_nothing(store):
    async def scene(loop):
        asked = [asyncio.ensure_future(loop.submit(wanted(MANY, token=f"token-{n}"))) for n in range(5)]
        while not any(opened.jobs for opened in loop.state.open.values()):
            await asyncio.sleep(0)
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        # Of the same user, so it waits for what is given up.
        await loop.submit(wanted(PART + 1, token="token-after"))
        while loop.state.open or store.unfinished():
            await asyncio.sleep(0)
        return len(loop.state.jobs)

    assert play(store, scene) == PART + 1
    assert len(list(store.jobs(active=True))) == PART + 1
    assert not store.unfinished()


def test_closed_submission_stays_when_client_hangs_up(store):
    async def scene(loop):
        asked = asyncio.ensure_future(loop.submit(wanted(MANY)))
        while not loop.state.arriving:
            await asyncio.sleep(0)
        asked.cancel()
        return await loop.submit(wanted(MANY))

    assert len(play(store, scene)) == MANY
    assert len(list(store.jobs(active=True))) == MANY


def test_next_try_of_a_client_that_hung_up_gets_all_jobs_once(store):
    async def scene(loop):
        asked = asyncio.ensure_future(loop.submit(wanted(MANY)))
        while not any(opened.jobs for opened in loop.state.open.values()):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        return await loop.submit(wanted(MANY))

    keys = play(store, scene)
    assert [job.key for job in store.jobs(active=True)] == list(keys)
    assert len(keys) == MANY


def test_submission_that_another_client_waits_for_goes_on(store):
    async def scene(loop):
        asked = [asyncio.ensure_future(loop.submit(wanted(MANY))) for _ in range(2)]
        while not any(opened.jobs for opened in loop.state.open.values()):
            await asyncio.sleep(0)
        asked[0].cancel()
        return await asked[1]

    assert len(play(store, scene)) == MANY


@pytest.mark.parametrize("is_noted", [False, True], ids=["before the intent", "after the intent"])
def test_action_of_a_client_that_hung_up_is_done_if_it_was_noted(store, is_noted):
    async def scene(loop):
        keys = await loop.submit(wanted(MANY, hold=False))
        action = BulkAction(Hold, 1001, "cli", is_operator=False)
        asked = asyncio.ensure_future(loop.apply_action(action, keys[1:]))
        while not (store.unfinished() if is_noted else loop.state.claimed):
            await asyncio.sleep(0)
        asked.cancel()
        while loop.state.claimed or store.unfinished():
            await asyncio.sleep(0)
        return {loop.state.jobs[key].state for key in keys[1:]}

    assert play(store, scene) == {JobState.HOLD if is_noted else JobState.QUEUED}


def test_turn_of_a_cancelled_waiter_is_passed_on():
    async def main():
        turns, order = Turns(), []

        async def take(uid, number):
            async with turns.of(uid):
                order.append((uid, number))

        async with turns.of(1):
            waiting = [asyncio.ensure_future(take(uid, n)) for uid in (1, 2, 3) for n in range(2)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            waiting[4].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert order == [(1, 1), (2, 0), (3, 1), (2, 1)]
        async with turns.of(4):
            pass

    asyncio.run(asyncio.wait_for(main(), 20))
