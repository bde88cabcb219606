"""Questions in threads: turns for users, and none for clients that are gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from gflow.daemon.loop.user_threads import MAX_PER_USER, WORKERS, Threads
from gflow.store.sqlite import SqliteStore
from tests.harness import wait_until
from tests.unit.conftest import FIRST_WITHOUT_ACCOUNT

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


class Work:
    """Work that lasts until it is let go, and how much of it ran."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = threading.Event()

    def __call__(self) -> int:
        self.begun += 1
        self.go.wait(20)
        return self.begun


def with_threads(main: Callable[[Threads], Any], **more: Any) -> Any:
    async def run() -> Any:
        threads = Threads(**more)
        try:
            return await main(threads)
        finally:
            threads.close(5)

    return asyncio.run(run())


async def until(condition: Callable[[], Any]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, wait_until, condition)


def test_one_user_leaves_threads_to_the_others(accounts: None) -> None:
    async def main(threads: Threads) -> None:
        theirs, mine = Work(), Work()
        many = [asyncio.ensure_future(threads.run(1001, theirs)) for _ in range(50)]
        await until(lambda: theirs.begun == MAX_PER_USER)
        mine.go.set()
        assert await asyncio.wait_for(threads.run(1002, mine), 20) == 1
        assert theirs.begun == MAX_PER_USER
        theirs.go.set()
        await asyncio.gather(*many)
        assert theirs.begun == 50

    with_threads(main, is_shared=True)


def test_work_of_a_client_that_is_gone_is_not_begun() -> None:
    async def main(threads: Threads) -> None:
        work = Work()
        many = [asyncio.ensure_future(threads.run(1001, work)) for _ in range(50)]
        await until(lambda: work.begun == WORKERS)
        for one in many:
            one.cancel()
        work.go.set()
        assert all(
            isinstance(one, asyncio.CancelledError)
            for one in await asyncio.gather(*many, return_exceptions=True)
        )
        assert work.begun == WORKERS

    with_threads(main)


def test_uids_without_account_have_the_threads_of_one_user(accounts: None) -> None:
    async def main(threads: Threads) -> None:
        theirs, mine = Work(), Work()
        uids = range(FIRST_WITHOUT_ACCOUNT, FIRST_WITHOUT_ACCOUNT + 50)
        many = [asyncio.ensure_future(threads.run(uid, theirs)) for uid in uids]
        await until(lambda: theirs.begun >= MAX_PER_USER)
        mine.go.set()
        assert await asyncio.wait_for(threads.run(1002, mine), 20) == 1
        assert theirs.begun == MAX_PER_USER
        theirs.go.set()
        await asyncio.gather(*many)

    with_threads(main, is_shared=True)


def test_turn_lasts_as_long_as_the_work_of_a_client_that_is_gone() -> None:
    async def main(threads: Threads) -> None:
        work, next_one = Work(), Work()
        many = [asyncio.ensure_future(threads.run(1001, work)) for _ in range(MAX_PER_USER)]
        await until(lambda: work.begun == MAX_PER_USER)
        for one in many:
            one.cancel()
        waiting = asyncio.ensure_future(threads.run(1001, next_one))
        await asyncio.sleep(0.05)
        assert next_one.begun == 0
        work.go.set()
        next_one.go.set()
        assert await waiting == 1

    with_threads(main, is_shared=True)


def test_query_of_a_client_that_is_gone_is_interrupted(tmp_path) -> None:
    store = SqliteStore(tmp_path / "gflow.db")

    async def main(threads: Threads) -> None:
        begun = threading.Event()

        def ask(reader: Any) -> Any:
            begun.set()
            return reader.rows(ENDLESS)

        asked = asyncio.ensure_future(threads.read(1001, store.reader, ask))
        await until(begun.is_set)
        await asyncio.sleep(0.05)  # into the query itself
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(asked), 20)
        assert asked.cancelled()

    with_threads(main)


@pytest.mark.parametrize("kind", ["query", "other"])
def test_close_wait_is_bounded(tmp_path, kind: str) -> None:
    store, work, ended = SqliteStore(tmp_path / "gflow.db"), Work(), threading.Event()

    async def main() -> None:
        threads = Threads()
        if kind == "query":
            asking = threads.read(1001, store.reader, lambda reader: reader.rows(ENDLESS))
        else:
            asking = threads.run(1001, work)
        asked = asyncio.ensure_future(asking)
        await asyncio.sleep(0.2)
        threads.close(0.2)
        asked.cancel()

    def run() -> None:
        asyncio.run(main())
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ended.wait(15)
    work.go.set()
