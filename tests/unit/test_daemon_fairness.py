"""What one person may have under way, and root any number of."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from gflow.daemon.api.fairness import MOST_STREAMS, Fairness
from gflow.errors import TooMany
from tests.unit.conftest import FIRST_WITHOUT_ACCOUNT

MOST = 1 << 30


def test_texts_that_one_person_keeps_on_the_disk_have_a_bound():
    fairness = Fairness(is_shared=True, most_kept=MOST)
    fairness.keep(1001, MOST - 1)
    with pytest.raises(TooMany):
        fairness.keep(1001, 1000)
    fairness.keep(1001, 0)
    fairness.keep(1002, MOST)
    fairness.keep(0, 10 * MOST)


def test_bound_of_kept_texts_goes_by_what_was_counted_and_brought_since():
    fairness = Fairness(is_shared=True, most_kept=MOST)
    fairness.keep(1001, MOST)
    before = fairness.brought()
    assert before == Counter({1001: MOST})
    fairness.keep(1002, 100)  # while the database is being counted
    fairness.counted({1001: MOST - 10, 1002: MOST - 200}, before)
    fairness.keep(1001, 10)
    fairness.keep(1002, 100)
    for uid in (1001, 1002):
        with pytest.raises(TooMany):
            fairness.keep(uid, 1)
    fairness.counted({}, fairness.brought())
    fairness.keep(1001, MOST)


def test_a_daemon_of_ones_own_holds_nobody_back():
    Fairness().keep(1001, 10 * MOST)


def test_uids_without_account_have_the_streams_of_one_user(accounts):
    async def main():
        fairness = Fairness(is_shared=True)
        async with AsyncExitStack() as held:
            for number in range(MOST_STREAMS):
                await held.enter_async_context(fairness.stream(FIRST_WITHOUT_ACCOUNT + number))
            with pytest.raises(TooMany):
                await held.enter_async_context(fairness.stream(FIRST_WITHOUT_ACCOUNT + MOST_STREAMS))
            await held.enter_async_context(fairness.stream(1001))
        await held.enter_async_context(fairness.stream(FIRST_WITHOUT_ACCOUNT))

    asyncio.run(main())
