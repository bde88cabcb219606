"""Limits on the work under way of one user; root has none."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from gflow.daemon.api import response
from gflow.daemon.api.request import MOST_COMMANDS
from gflow.daemon.auth.rate_limits import MOST_EXPANSIONS, MOST_HELD, MOST_STREAMS, RateLimits
from gflow.errors import TooMany
from tests.unit.conftest import FIRST_WITHOUT_ACCOUNT

MOST = 1 << 30


def test_texts_that_one_person_keeps_on_the_disk_have_a_bound():
    rate_limits = RateLimits(is_shared=True, most_stored=MOST)
    rate_limits.count_stored(1001, MOST - 1)
    with pytest.raises(TooMany):
        rate_limits.count_stored(1001, 1000)
    rate_limits.count_stored(1001, 0)
    rate_limits.count_stored(1002, MOST)
    rate_limits.count_stored(0, 10 * MOST)


def test_kept_text_limit_counts_texts_added_since():
    rate_limits = RateLimits(is_shared=True, most_stored=MOST)
    rate_limits.count_stored(1001, MOST)
    before = rate_limits.stored_since_count()
    assert before == Counter({1001: MOST})
    rate_limits.count_stored(1002, 100)  # while the database is being counted
    rate_limits.set_stored({1001: MOST - 10, 1002: MOST - 200}, before)
    rate_limits.count_stored(1001, 10)
    rate_limits.count_stored(1002, 100)
    for uid in (1001, 1002):
        with pytest.raises(TooMany):
            rate_limits.count_stored(uid, 1)
    rate_limits.set_stored({}, rate_limits.stored_since_count())
    rate_limits.count_stored(1001, MOST)


def test_user_daemon_has_no_rate_limits():
    RateLimits().count_stored(1001, 10 * MOST)


def test_uids_without_account_have_the_streams_of_one_user(accounts):
    async def main():
        rate_limits = RateLimits(is_shared=True)
        async with AsyncExitStack() as held:
            for number in range(MOST_STREAMS):
                await held.enter_async_context(rate_limits.count_stream(FIRST_WITHOUT_ACCOUNT + number))
            with pytest.raises(TooMany):
                await held.enter_async_context(rate_limits.count_stream(FIRST_WITHOUT_ACCOUNT + MOST_STREAMS))
            await held.enter_async_context(rate_limits.count_stream(1001))
        await held.enter_async_context(rate_limits.count_stream(FIRST_WITHOUT_ACCOUNT))

    asyncio.run(main())


def test_submissions_under_way_of_one_user_have_a_bound(accounts):
    rate_limits = RateLimits(is_shared=True)
    assert MOST_COMMANDS <= MOST_HELD, "one request may have all of it"
    with (
        rate_limits.count_held(1001) as hold,
        rate_limits.count_held(1001) as more,
        rate_limits.count_held(1002) as other,
    ):
        hold(MOST_HELD - 1)
        hold(1)
        other(MOST_HELD)
        with pytest.raises(TooMany, match="256 MiB"):
            more(1)
    with rate_limits.count_held(1001) as hold:
        hold(MOST_HELD)
    with rate_limits.count_held(0) as hold:
        hold(10 * MOST_HELD)


def test_expansions_alternate_between_users(accounts):
    rate_limits, begun, running = RateLimits(is_shared=True), [], []

    async def expand(uid, go):
        async with rate_limits.expansion_turn(uid):
            begun.append(uid)
            running.append(uid)
            assert len(running) <= MOST_EXPANSIONS
            await go.wait()
            running.remove(uid)

    async def main():
        go, free = asyncio.Event(), asyncio.Event()
        free.set()
        many = [asyncio.ensure_future(expand(1001, go)) for _ in range(50)]
        await asyncio.sleep(0)
        await asyncio.wait_for(expand(1002, free), 20)
        assert begun == [1001, 1002], "a user has one turn at a time"
        go.set()
        await asyncio.gather(*many)

    asyncio.run(main())


def test_answer_that_is_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr(response, "UNREAD_S", 0.01)

    async def main():
        gone, made = asyncio.Event(), []

        async def pieces():
            for number in range(1000):
                made.append(number)
                yield "x"
                await asyncio.sleep(0)

        async def send(message):
            if message["type"] == "http.response.body" and not gone.is_set():
                await gone.wait()

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "state": {"abort": gone.set}}
        released = SimpleNamespace(yes=False)
        async with AsyncExitStack() as stack:
            stack.callback(setattr, released, "yes", True)
            answer = response.TimedTurnResponse(pieces(), stack.pop_all())
        await asyncio.wait_for(answer(scope, receive, send), 20)
        assert gone.is_set()
        assert released.yes
        assert len(made) < 1000

    asyncio.run(main())
