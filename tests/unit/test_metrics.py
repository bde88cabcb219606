"""/metrics: read by Prometheus' own parser, named by its conventions, and cheap."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from gflow.core.ids import JobKey, job_key
from gflow.core.model import AuditEntry, JobState
from gflow.core.state.state import State
from gflow.daemon.api.handlers.metrics import show_metrics
from gflow.daemon.loop import counters as module
from gflow.daemon.loop.counters import LONG, Histogram, Meters
from gflow.store.port import Changes
from gflow.text.prometheus import Page
from tests.unit.builders import job, running
from tests.unit.test_cost import instructions


def line(what: str, key: JobKey) -> AuditEntry:
    return AuditEntry(1.0, key, None, "daemon", what, "")


def test_a_page_reads_back():
    page = Page()
    page.one("a_bytes", "gauge", "With a backslash.", 0.1)
    page.family("b_total", "counter", "Quoted.", [({"user": 'o"n\\e\n'}, 3), ({"user": "two"}, 1e300)])
    page.family("c", "gauge", "Of no user.", [])
    page.histogram("d_seconds", "Times.", [({"operation": "x"}, (0.5, 1.0), [1, 0, 2], 7.25)])
    found = {family.name: family for family in parsed(page.text())}
    assert set(found) == {"a_bytes", "b", "d_seconds"}
    assert found["a_bytes"].samples[0].value == 0.1
    assert [(s.labels["user"], s.value) for s in found["b"].samples] == [('o"n\\e\n', 3), ("two", 1e300)]
    buckets = [s.value for s in found["d_seconds"].samples if s.name.endswith("bucket")]
    assert buckets == [1, 1, 3]
    assert found["d_seconds"].type == "histogram"


@pytest.mark.parametrize(("value", "slot"), [(0.0, 0), (1.0, 0), (1.01, 1), (1e9, len(LONG))])
def test_an_observation_falls_below_its_bound(value, slot):
    one = Histogram(LONG)
    one.observe(value)
    assert one.counts.index(1) == slot
    assert one.sum == value


def test_jobs_are_counted_as_they_change():
    meters = Meters()
    meters.recount([job(1, state=JobState.HOLD), job(2)])
    assert meters.apart == {JobState.HOLD: {job_key(1)}}
    freed = job(1)
    meters.update(Changes(jobs={freed.key: freed}, audit=[line("released", freed.key)]))
    assert not meters.apart[JobState.HOLD]
    started = running(2, 0, submitted_at=10.0, started_at=40.0)
    meters.update(Changes(jobs={started.key: started}, audit=[line("started", started.key)]))
    assert meters.waited.counts[LONG.index(60.0)] == 1
    ended = job(2, state=JobState.FAILED, attempt=1, started_at=40.0, finished_at=41.0)
    meters.update(Changes(jobs={ended.key: ended}, audit=[line("failed", ended.key), line("gpu", ended.key)]))
    assert meters.users == {("failed", ended.user): 1}


def test_users_above_the_maximum_are_counted_as_others(monkeypatch):
    monkeypatch.setattr(module, "MAX_USERS", 1)
    meters = Meters()
    for number, user in enumerate(["ann", "bob", "root", "ann"], 1):
        one = job(number, user=user)
        meters.update(Changes(jobs={one.key: one}, audit=[line("submitted", one.key)]))
    assert {user: count for (_, user), count in meters.users.items()} == {"ann": 2, "other": 2}


def scrape(size: int) -> int:
    """How many instructions a scrape takes among so many jobs."""
    state = State(cpus=0, memory_mib=1024)
    for number in range(1, size + 1):
        state.add(job(number))
    meters = Meters()
    meters.recount(state.jobs.values())
    loop = SimpleNamespace(state=state, meters=meters, read_only="")
    context: Any = SimpleNamespace(loop=loop, watch=None, started_boot=0.0, job=state.jobs.get)
    request: Any = SimpleNamespace(
        app=SimpleNamespace(state=SimpleNamespace(context=context)), scope={"state": {"uid": 0}}
    )
    context.settings = SimpleNamespace(is_system=False, is_private=False)
    return instructions(lambda: asyncio.run(show_metrics(request)))


def test_a_scrape_costs_the_same_among_many_jobs():
    few, many = scrape(20), scrape(2000)
    assert few > 1000, "it did something"
    assert many < few * 1.1
