"""Why a job waits, in full: obstacles, expected start, what would start now."""

from __future__ import annotations

import pytest

from gflow.core.engine import step
from gflow.core.events import SetQuota
from gflow.core.forecast import LATE, SLACK_S, expected_start, expected_starts, outlook
from gflow.core.model import Moment
from gflow.core.policy import Policy
from gflow.core.quotas import USER, Limits
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry

HOUR = 3600.0


def stopped(entries: list[Entry], gpus: int = 4, policy: Policy | None = None, exact: bool = True):
    """The state when the last of these has been submitted, and its job."""
    replay = Replay(entries, gpus, policy or Policy(fair_share=False), exact=exact)
    for entry in entries:
        replay._take(step(replay.state, replay._submission(entry, entry.submit)), entry.submit)
    return replay.state, replay.state.jobs[len(entries) << 20], entries[-1].submit


def test_it_starts_when_enough_gpus_are_free() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 2), Entry(1.0, 1.5 * HOUR, 2), Entry(2.0, HOUR, 3)])
    found = outlook(state, job, now)
    assert found.start is not None
    assert found.start.expected == pytest.approx(1.0 + 1.5 * HOUR)
    assert now <= found.start.earliest < found.start.expected < found.start.latest
    assert found.start.latest == pytest.approx(found.start.expected + SLACK_S), "limits say the latest"
    assert [why.code for why in found.blockers] == ["Resources", "Running", "Running"]
    assert found.blockers[1].detail == "job 1 has GPU 0,1"
    assert found.instead == []


def test_those_before_it_start_first() -> None:
    entries = [Entry(0.0, HOUR, 4), Entry(1.0, HOUR, 4), Entry(2.0, HOUR / 2, 4), Entry(3.0, 2 * HOUR, 4)]
    state, job, now = stopped(entries)
    found = outlook(state, job, now)
    assert found.start is not None
    assert found.start.expected == pytest.approx(2.5 * HOUR)
    assert str(found.blockers[-1]) == "Priority: 2 jobs come before it"


def test_fewer_gpus_would_start_now() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 2), Entry(1.0, HOUR, 4)])
    assert outlook(state, job, now).instead == ["--gpus 2"]


def test_a_shorter_job_would_start_before_a_promise() -> None:
    policy = Policy(fair_share=False, patience=0.0)
    state, job, now = stopped(
        [Entry(0.0, HOUR, 2), Entry(1.0, HOUR, 4), Entry(2.0, 5 * HOUR, 1)], policy=policy
    )
    found = outlook(state, job, now)
    assert found.instead == ["--time 59"]
    assert "Promise: job 2 has waited longer and is promised its start" in map(str, found.blockers)


def test_a_quota_is_named_and_nothing_starts_instead() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 4, "ann"), Entry(1.0, HOUR, 1, "ann")])
    limits = Limits(max_running_jobs=1)
    step(state, SetQuota(at=Moment(now, now), uid=0, scope=USER, name="ann", limits=limits))
    found = outlook(state, job, now)
    assert str(found.blockers[0]) == "Quota: ann runs 1 of 1 jobs"
    assert found.instead == []


def test_the_interval_is_as_wide_as_the_constants_say() -> None:
    entries = [Entry(0.0, HOUR, 4), Entry(1.0, HOUR, 4)]
    state, job, now = stopped(entries, policy=Policy(patience=-1.0), exact=False)
    found = outlook(state, job, now).start
    assert found is not None
    assert found.latest == pytest.approx(now + LATE * (found.expected - now) + SLACK_S)


def test_a_listing_tells_when_those_who_wait_will_start() -> None:
    entries = [Entry(0.0, HOUR, 4), Entry(1.0, 2 * HOUR, 4), Entry(2.0, HOUR, 2), Entry(3.0, HOUR, 2)]
    state, _, now = stopped(entries)
    starts = expected_starts(state, now)
    assert starts == {3 << 20: HOUR, 4 << 20: HOUR, 2 << 20: pytest.approx(2 * HOUR)}
    for key in starts:
        assert expected_start(state, state.jobs[key], now).expected == pytest.approx(starts[key])
