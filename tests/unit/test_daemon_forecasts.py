"""Forecasts: one snapshot of the queue for all clients, and none for a client that is gone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from gflow.core.engine import step
from gflow.core.events import Cancel, Submit
from gflow.core.forecast.queue_snapshot import QueueSnapshot
from gflow.core.model import Moment
from gflow.core.policy import Policy
from gflow.core.state.state import State
from gflow.daemon.api.handlers.jobs import explain_wait
from gflow.daemon.api.handlers.queue import _expected_starts
from gflow.daemon.loop.cooperative import SLICE
from gflow.daemon.loop.forecasts import Forecasts
from gflow.daemon.loop.user_threads import MAX_PER_USER, Threads
from gflow.errors import UsageError
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry
from tests.harness import wait_until

MANY = 3 * SLICE
NOW = Moment(10.0, 10.0)


@pytest.fixture(autouse=True)
def _no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, a snapshot does not grow old."""
    monkeypatch.setattr("gflow.daemon.loop.forecasts.FRESH_S", 600.0)


class Counted(dict[Any, Any]):
    """The queue's groups, and how often all of them were looked at."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def waiting(count: int = MANY) -> State:
    """So many jobs wait, no two alike."""
    entries = [Entry(0.0, 3600.0, 4)]
    entries += [Entry(1.0, 600.0 + place, 1, name=f"work-{place}") for place in range(count)]
    replay = Replay(entries, 4, Policy(fair_share=False), exact=True)
    for entry in entries:
        step(replay.state, replay._submission(entry, entry.submit))
    replay.state.ready.groups = Counted(replay.state.ready.groups)
    return replay.state


def request_of(context: Any, number: int, uid: int = 1001, *, is_gone: bool = False) -> Request:
    """`GET /jobs/N/why` of a client that stays, or has hung up."""

    async def receive() -> Any:
        if not is_gone:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "headers": [],
        "path_params": {"job": str(number)},
        "state": {"uid": uid, "origin": "cli"},
        "app": SimpleNamespace(state=SimpleNamespace(context=context)),
    }
    return Request(scope, receive)


def play(scene: Callable[[Any, State], Any], state: State) -> Any:
    async def run() -> Any:
        loop, threads = SimpleNamespace(state=state, version=0), Threads(is_shared=True)
        context = SimpleNamespace(
            loop=loop,
            threads=threads,
            forecasts=Forecasts(loop, threads),
            settings=SimpleNamespace(is_system=False),
            job=state.jobs.get,
            queued_as=lambda job: job,
        )
        try:
            return await asyncio.wait_for(scene(context, state), 60)
        finally:
            threads.close(5)

    return asyncio.run(run())


def looks(state: State) -> int:
    groups: Any = state.ready.groups
    return int(groups.looks)


def told(answer: Response) -> Any:
    return json.loads(bytes(answer.body))


def test_many_questions_about_one_state_copy_the_queue_once() -> None:
    async def scene(context: Any, state: State) -> None:
        asked = [explain_wait(request_of(context, 2 + number, 1001 + number % 5)) for number in range(50)]
        listed = [_expected_starts(request_of(context, 1), NOW) for _ in range(50)]
        answers = await asyncio.gather(*asked)
        starts = await asyncio.gather(*listed)
        assert all(told(one)["start"] for one in answers)
        assert all(one == starts[0] for one in starts)
        assert looks(state) == 1
        assert len(starts[0]) == MANY

    play(scene, waiting())


def test_question_after_a_change_sees_the_change() -> None:
    async def scene(context: Any, state: State) -> None:
        last = MANY + 1
        before = told(await explain_wait(request_of(context, last)))
        assert {"code": "Priority", "detail": f"{MANY - 1} jobs come before it"} in before["blockers"]
        step(state, Cancel(at=NOW, uid=0, keys=tuple(state.ready.where)[:100]))
        context.loop.version += 1
        after = told(await explain_wait(request_of(context, last)))
        assert {"code": "Priority", "detail": f"{MANY - 101} jobs come before it"} in after["blockers"]
        assert looks(state) == 2

    play(scene, waiting())


def test_job_that_came_after_the_snapshot_began_is_answered_for() -> None:
    async def scene(context: Any, state: State) -> None:
        spec = state.jobs[2 << 20].spec
        first = asyncio.ensure_future(explain_wait(request_of(context, 2)))
        while not looks(state):
            await asyncio.sleep(0)
        step(state, Submit(at=NOW, uid=1, user="ann", specs=(spec,), outcomes={}))
        found = await explain_wait(request_of(context, state.jobs.next_number - 1))
        assert told(found)["start"]
        await first

    play(scene, waiting())


def test_client_that_hung_up_has_nothing_copied() -> None:
    async def scene(context: Any, state: State) -> None:
        for ask in (
            explain_wait(request_of(context, 2, is_gone=True)),
            _expected_starts(request_of(context, 2, is_gone=True), NOW),
        ):
            with pytest.raises(UsageError, match="hung up"):
                await ask
        assert looks(state) == 0

    play(scene, waiting())


def test_nothing_is_copied_before_the_users_turn(accounts: None) -> None:
    async def scene(context: Any, state: State) -> None:
        go = threading.Event()
        busy = [asyncio.ensure_future(context.threads.run(1001, go.wait, 30)) for _ in range(MAX_PER_USER)]
        await asyncio.sleep(0)
        asked = [asyncio.ensure_future(explain_wait(request_of(context, 2))) for _ in range(20)]
        other = await explain_wait(request_of(context, 3, uid=1002))
        assert told(other)["start"]
        assert looks(state) == 1, "of the other user alone"
        for one in asked[1:]:
            one.cancel()
        go.set()
        assert told(await asked[0])["start"]
        await asyncio.gather(*busy)

    play(scene, waiting())


def test_snapshot_is_copied_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one forecast is computed at a time, for all clients together."""
    taken, computing, most = [], [0], [0]
    take, run_now = QueueSnapshot.take, Threads.run_now

    def counted(self: QueueSnapshot, count: int) -> bool:
        taken.append(count)
        return take(self, count)

    async def alone(self: Threads, *args: Any, **more: Any) -> Any:
        computing[0] += 1
        most[0] = max(most[0], computing[0])
        try:
            return await run_now(self, *args, **more)
        finally:
            computing[0] -= 1

    monkeypatch.setattr(QueueSnapshot, "take", counted)
    monkeypatch.setattr(Threads, "run_now", alone)

    async def scene(context: Any, state: State) -> None:
        await asyncio.gather(*(explain_wait(request_of(context, 2 + n, 1001 + n)) for n in range(10)))

    play(scene, waiting())
    assert max(taken) <= SLICE
    assert len(taken) == MANY // SLICE + 1
    assert most[0] == 1


def test_snapshot_is_let_go_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gflow.daemon.loop.forecasts.FRESH_S", 0.0)

    async def scene(context: Any, state: State) -> None:
        await explain_wait(request_of(context, 2))
        await asyncio.get_running_loop().run_in_executor(
            None, wait_until, lambda: context.forecasts._cached is None
        )

    play(scene, waiting())
