"""When the daemon collects garbage: never all that waiting jobs consist of."""

import asyncio
import gc
from contextlib import suppress
from types import SimpleNamespace

import pytest

from gflow.daemon import main
from gflow.daemon.main import _collect_garbage, _tune_garbage_collector


def test_collector_scans_only_young_objects_by_itself():
    before, scanned = gc.get_threshold(), set()

    def note(phase, info):
        scanned.add(info["generation"])

    gc.callbacks.append(note)
    try:
        _tune_garbage_collector()
        for _ in range(
            250
        ):  # an older generation is due after 200 collections with the threshold of the past
            young = [[] for _ in range(10_100)]
            del young
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        gc.unfreeze()
    assert scanned == {0}


@pytest.mark.parametrize(("jobs", "collections"), [(main.FEW_JOBS - 1, 2 * main.SELDOM), (main.FEW_JOBS, 2)])
def test_older_objects_are_collected_once_a_day_if_there_are_many_jobs(monkeypatch, jobs, collections):
    passed, collected = [], []

    async def sleep(seconds):
        assert seconds == main.COLLECT_S
        passed.append(seconds)
        if sum(passed) > 2 * 86_400:
            raise asyncio.CancelledError

    monkeypatch.setattr(main.asyncio, "sleep", sleep)
    monkeypatch.setattr(main.gc, "collect", lambda: collected.append(len(passed)))
    with suppress(asyncio.CancelledError):
        asyncio.run(_collect_garbage(SimpleNamespace(state=SimpleNamespace(jobs=range(jobs)))))
    assert len(collected) == collections
