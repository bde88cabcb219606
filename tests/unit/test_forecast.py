"""Why a job waits, in full: obstacles, expected start, what would start now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest
from msgspec import UNSET

from gflow.core.engine import step
from gflow.core.events import Cancel, Event, Exited, Foresee, Reserve, SetQuota, Submit
from gflow.core.forecast.queue_snapshot import QueueSnapshot
from gflow.core.forecast.start_time import Listing, eta_query_for_new, eta_query_of
from gflow.core.forecast.wait_report import wait_report
from gflow.core.ids import job_key
from gflow.core.model import Moment
from gflow.core.policy import Policy
from gflow.core.state.eta_calibration import EtaOutcome, EtaSample
from gflow.core.state.quotas import USER, Limits
from gflow.daemon.loop.forecasts import Forecasts
from gflow.daemon.loop.user_threads import Threads
from gflow.daemon.monitors import maintenance
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry
from gflow.text.why import why_page
from gflow.wire.shell_words import spell_blockers

from .machine import Machine, gpu

HOUR = 3600.0


def stopped(entries: list[Entry], gpus: int = 4, policy: Policy | None = None, exact: bool = True):
    """The state when the last of these has been submitted, and its job."""
    replay = Replay(entries, gpus, policy or Policy(fair_share=False), exact=exact)
    for entry in entries:
        replay._apply(step(replay.state, replay._submission(entry, entry.submit)), entry.submit)
    return replay.state, replay.state.jobs[len(entries) << 20], entries[-1].submit


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_a_job_that_is_not_submitted_starts_after_the_others(entries: int) -> None:
    state, job, now = stopped([Entry(float(number), HOUR, 4) for number in range(entries)])
    new = msgspec.structs.replace(job, key=job_key(99), ready_at=now)
    waiting = len(state.ready)
    found = eta_query_for_new(state, new, QueueSnapshot.of(state, now)).start()
    assert found is not None
    assert found.expected == pytest.approx(entries * HOUR, abs=60)
    assert (len(state.ready), state.ready.where.get(new.key)) == (waiting, None)


def test_start_time_is_when_enough_gpus_are_free() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 2), Entry(1.0, 1.5 * HOUR, 2), Entry(2.0, HOUR, 3)])
    found = wait_report(state, job, Moment(now, now))
    assert found.start is not None
    assert found.start.expected == pytest.approx(1.0 + 1.5 * HOUR)
    assert found.start.earliest == now, "with luck"
    assert found.start.expected < found.start.latest
    assert [why.code for why in found.blockers] == ["Resources", "Running", "Running"]
    assert found.blockers[1].detail == "job 1 has GPU 0,1"
    assert found.instead == []


@pytest.mark.parametrize(
    ("gpus", "times"),
    [(4, 8.0), (2, 8.0 * 0.5 ** (2 / 3))],  # who wants half of the machine waits for five times
)
def test_start_reservation_time_follows_patience(gpus: int, times: float) -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 4), Entry(1.0, HOUR, gpus)])
    found = wait_report(state, job, Moment(now, now))
    assert found.promised_at == pytest.approx(1.0 + times * 0.18 * HOUR)
    assert "Backfill may start other jobs first until" in why_page(job, found, now)
    assert "waited long enough" in why_page(job, found, found.promised_at)
    state, job, now = stopped([Entry(0.0, HOUR, 4), Entry(1.0, HOUR, gpus)], policy=Policy(patience=-1.0))
    assert wait_report(state, job, Moment(now, now)).promised_at is None, "no reservation without patience"


def test_start_is_unknown_without_visible_gpus() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 4), Entry(1.0, HOUR, 4)])
    state.machine.see_gpus(())
    found = wait_report(state, job, Moment(now, now))
    assert (found.start, found.promised_at) == (None, None)


def test_earlier_jobs_start_first() -> None:
    entries = [Entry(0.0, HOUR, 4), Entry(1.0, HOUR, 4), Entry(2.0, HOUR / 2, 4), Entry(3.0, 2 * HOUR, 4)]
    state, job, now = stopped(entries)
    found = wait_report(state, job, Moment(now, now))
    assert found.start is not None
    assert found.start.expected == pytest.approx(2.5 * HOUR)
    assert str(found.blockers[-1]) == "Priority: job 2 (shorter) and job 3 (shorter) come before it"


def test_alternative_with_fewer_gpus_starts_now() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 2), Entry(1.0, HOUR, 4)])
    assert wait_report(state, job, Moment(now, now)).instead == [{"gpus": 2}]


def test_shorter_job_would_start_before_a_start_reservation() -> None:
    policy = Policy(fair_share=False, patience=0.0)
    state, job, now = stopped(
        [Entry(0.0, HOUR, 2), Entry(1.0, HOUR, 4), Entry(2.0, 5 * HOUR, 1)], policy=policy
    )
    found = wait_report(state, job, Moment(now, now))
    assert found.instead == [{"time_limit_s": 59 * 60}]
    assert "Promise: job 2 has waited longer and has a start reservation" in map(str, found.blockers)


def test_a_quota_is_named_and_nothing_starts_instead() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 4, "ann"), Entry(1.0, HOUR, 1, "ann")])
    limits = Limits(max_running_jobs=1)
    step(state, SetQuota(at=Moment(now, now), uid=0, scope=USER, name="ann", limits=limits))
    found = wait_report(state, job, Moment(now, now))
    assert str(found.blockers[0]) == "Quota: ann runs 1 of 1 jobs"
    assert found.instead == []


def test_job_above_its_quota_never_starts_and_has_no_eta() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 1, "ann"), Entry(1.0, HOUR, 4, "ann")])
    limits = Limits(max_running_gpus=2)
    step(state, SetQuota(at=Moment(now, now), uid=0, scope=USER, name="ann", limits=limits))
    found = wait_report(state, job, Moment(now, now))
    assert str(found.blockers[0]) == "Quota: the job asks for 4 GPUs, and the quota of ann is 2"
    assert (found.start, found.promised_at, found.instead) == (None, None, [])
    assert "It never starts under the current quota.\n" in why_page(job, found, now)
    state, job, now = stopped([Entry(0.0, HOUR, 1, "ann"), Entry(1.0, HOUR, 4, "ann")])
    step(state, SetQuota(at=Moment(now, now), uid=0, scope=USER, name="", limits=Limits(max_running_gpus=4)))
    assert wait_report(state, job, Moment(now, now)).start is not None, "it waits for its own other job"


def test_restricted_gpus_are_named() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 2), Entry(1.0, HOUR, 3)])
    state.machine.restrict(frozenset({0, 2}))
    found = wait_report(state, job, Moment(now, now))
    assert "Restricted: 2 GPUs (1,3) are kept from jobs" in map(str, found.blockers)
    (spelled,) = [why for why in spell_blockers(job, found.blockers) if why.code == "Restricted"]
    assert spelled.detail == "2 GPUs (1,3) are kept from jobs: gctl set-gpus"


def test_taken_cpu_slots_are_named_with_the_jobs_that_have_them() -> None:
    machine = Machine(cpus=2)
    for _ in range(3):
        machine.submit(time_limit_s=60)
    found = wait_report(machine.state, machine[3], machine.now)
    assert [str(why) for why in found.blockers] == [
        "Resources: 2 of 2 CPU slots are taken",
        "Running: job 1 has 1 CPU slot",
        "Running: job 2 has 1 CPU slot",
    ]


def test_assumed_run_times_are_named() -> None:
    """Only where neither a time limit nor earlier runs tell how long the job takes."""
    machine = Machine(gpu(0), gpu(1), gpu(2))
    machine.submit(gpus=1, name="limited", time_limit_s=60)
    machine.submit(gpus=1, name="known")
    machine.passes(100)
    machine.ends(2)
    machine.submit(gpus=1, name="known")
    machine.submit(gpus=1, name="unknown")
    machine.submit(gpus=1, name="waiting")
    found = wait_report(machine.state, machine[5], machine.now)
    assumed = {why.detail: why.assumed_s for why in found.blockers if why.code == "Running"}
    assert assumed == {"job 3 has GPU 1": UNSET, "job 4 has GPU 2": 7200.0, "job 1 has GPU 0": UNSET}
    page = why_page(machine[5], found, machine.now.wall)
    assert "Running: job 4 has GPU 2; it has no --time, 02:00:00 is assumed\n" in page


def test_each_gpu_reservation_is_named_with_its_times() -> None:
    machine = Machine(gpu(0), gpu(1))
    wall = machine.now.wall
    for start in (wall, wall + HOUR, wall + 9 * HOUR):
        machine.hears(Reserve, uid=0, user="bob", gpus=(0, 1), count=0, start=start, end=start + HOUR)
    machine.submit(gpus=1, time_limit_s=7200)
    found = wait_report(machine.state, machine[1], machine.now)
    times = [(why.since, why.until) for why in found.blockers if why.code == "Reservation"]
    assert times == [(wall, wall + HOUR), (wall + HOUR, wall + 2 * HOUR)], "the third comes after its end"
    lines = why_page(machine[1], found, wall).splitlines()
    assert lines[1] != lines[2] and all(" to " in line for line in lines[1:3])
    assert max(map(len, lines)) < 80


def test_start_reservation_of_another_job_delays_the_start() -> None:
    """It would fit now, and must not delay a job with a start reservation for all GPUs."""
    policy = Policy(fair_share=False, patience=0.0)
    state, job, now = stopped(
        [Entry(0.0, HOUR, 2), Entry(1.0, HOUR, 4), Entry(2.0, 5 * HOUR, 1)], policy=policy
    )
    found = wait_report(state, job, Moment(now, now)).start
    assert found is not None
    assert found.expected == pytest.approx(2 * HOUR)


def test_long_running_job_is_expected_to_continue() -> None:
    """The length of the first job is unknown; after ten hours it is not expected to end within minutes."""
    entries = [Entry(0.0, 90 * HOUR, 4), Entry(9.9 * HOUR, HOUR, 4)]
    state, job, now = stopped(entries, exact=False)
    found = wait_report(state, job, Moment(now, now)).start
    assert found is not None
    assert found.expected == pytest.approx(now + 9.9 * HOUR)


def test_last_of_a_long_queue_waits_for_all_work() -> None:
    entries = [Entry(0.0, HOUR, 4)]
    entries += [Entry(1.0 + place, HOUR, 4, name=f"work-{place}") for place in range(1200)]
    entries.append(Entry(9000.0, 2 * HOUR, 4, name="last"))
    replay = Replay(entries[:1], 4, Policy(fair_share=False), exact=True)
    for entry in entries:
        step(replay.state, replay._submission(entry, 10.0))
    state = replay.state
    found = eta_query_of(state, state.jobs[len(entries) << 20], 10.0).start()
    assert found is not None
    assert found.expected == pytest.approx(10.0 + 1201 * HOUR)


def test_forecast_is_sampled_and_compared_with_the_start() -> None:
    """A job that is cancelled is forgotten; changes go with the next commit."""
    state, job, now = stopped([Entry(0.0, HOUR, 4), Entry(1.0, HOUR, 4)])
    case, at = eta_query_of(state, job, now).case(), Moment(now, now)
    assert case == EtaSample(now, pytest.approx(HOUR - 1), True)
    step(state, Foresee(at=at, key=job.key, case=case))
    assert state.eta_calibration.record.open == {job.key: case}
    assert state.eta_calibration.is_changed
    state.eta_calibration.text()
    step(state, Foresee(at=at, key=job.key, case=None))
    assert not state.eta_calibration.is_changed, "nothing is new"
    step(state, Exited(at=Moment(HOUR / 2, HOUR / 2), key=1 << 20, attempt=1, code=0))
    assert not state.eta_calibration.record.open
    assert state.eta_calibration.record.over == [EtaOutcome(now, pytest.approx(0.5, abs=0.01), True)]
    step(state, Submit(at=at, uid=1, user="ann", specs=(job.spec,), outcomes={}))
    step(state, Foresee(at=at, key=3 << 20, case=case))
    assert list(state.eta_calibration.record.open) == [3 << 20]
    step(state, Cancel(at=at, uid=0, keys=(3 << 20,)))
    step(state, Foresee(at=at, key=3 << 20, case=case))
    assert not state.eta_calibration.record.open


def test_listing_shows_expected_starts() -> None:
    entries = [Entry(0.0, 900.0, 4), Entry(1.0, 2 * HOUR, 4), Entry(2.0, HOUR, 2), Entry(3.0, HOUR, 2)]
    state, _, now = stopped(entries)
    starts = Listing(QueueSnapshot.of(state, now)).starts()
    assert starts == {3 << 20: 900.0, 4 << 20: 900.0, 2 << 20: pytest.approx(900.0 + HOUR)}
    for key in starts:
        assert eta_query_of(state, state.jobs[key], now).start().expected == pytest.approx(starts[key])


def test_daemon_samples_the_latest_waiting_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every minute, of the waiting job that was submitted last."""
    state, job, _ = stopped([Entry(0.0, HOUR, 4), Entry(1.0, HOUR, 4)])
    monkeypatch.setattr(maintenance, "ETA_SAMPLE_S", 0.0)

    async def noted() -> Event:
        posted: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

        def post(make: Callable[[Moment], Event]) -> None:
            if not posted.done():
                posted.set_result(make(Moment(2.0, 2.0)))

        loop, threads = SimpleNamespace(state=state, post=post, version=0), Threads()
        task = asyncio.ensure_future(maintenance.record_eta_samples(loop, Forecasts(loop, threads)))
        try:
            return await asyncio.wait_for(posted, 30)
        finally:
            task.cancel()
            threads.close(5)

    event = asyncio.run(noted())
    assert isinstance(event, Foresee)
    assert event.key == job.key
    assert event.case is not None
    step(state, event)
    assert list(state.eta_calibration.record.open) == [job.key]


def test_start_reservation_is_not_before_that_of_an_older_job() -> None:
    """A long one that is not due for days comes first: the time of the short one alone would not be kept."""
    state, job, now = stopped([Entry(0.0, HOUR, 4), Entry(1.0, 100 * HOUR, 4), Entry(2.0, HOUR, 4)])
    assert wait_report(state, job, Moment(now, now)).promised_at == pytest.approx(
        1.0 + 8.0 * 0.18 * 100 * HOUR
    )
