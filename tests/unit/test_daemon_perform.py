"""The executor carries out all effects of the engine, also after errors."""

import asyncio
import errno
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from gflow.core import reasons
from gflow.core.effects import Forget, Start, Stop, Warn
from gflow.core.ids import job_key
from gflow.core.model import JobState
from gflow.core.state.state import State
from gflow.daemon.execution.executor import Executor
from gflow.errors import StoreError
from gflow.targets import outcome
from gflow.targets.local import gpu_leases
from gflow.targets.port import HostRules, Run
from gflow.testing import FakeTarget, gpus, running

SETTINGS = SimpleNamespace(
    is_system=False, log_cap_mib=1, logs="/logs", socket="/gflowd.sock", max_processes=7, unkillable_s=60,
    rules=HostRules(memory_mib=900), gpu=SimpleNamespace(visible_by="uuid"),
)  # fmt: skip


class Store:
    def blob(self, address):
        if address == "gone":
            raise StoreError("the stored text gone is gone")
        if address == "bug":
            raise KeyError("a bug")
        return b"A=1\0"


class Sharing:
    """Knows nothing, and finds nothing out."""

    def knows(self, job, environ):
        return False

    async def inspect(self, job, environ):
        raise RuntimeError("no thread to be had")


@pytest.fixture
def stage():
    """An executor of jobs that run by the book, the target, and the ends that were reported."""
    state = State(cpus=4, memory_mib=1024)
    state.machine.see_gpus(gpus(4))
    ends = []
    target = FakeTarget(ends.append)
    held = SimpleNamespace(paths=lambda indices: [f"/lease/{index}" for index in indices])
    executor = Executor(SETTINGS, Store(), target, held, lambda: state, ends.append, Sharing())

    def runs(*jobs):
        for job in jobs:
            state.add(job)
            state.book(job)
        executor([Start(job.key, job.attempt) for job in jobs])

    return SimpleNamespace(runs=runs, executor=executor, target=target, ends=ends)


def test_a_start_is_a_launch(stage):
    stage.runs(running(1, 0, 2, environ="env", script="text", command=()))
    (launch,) = stage.target.started
    assert (launch.run.name, launch.environ, launch.script) == ("1.1", b"A=1\0", b"A=1\0")
    assert (launch.log, launch.error_log, launch.log_cap) == ("/logs/1.log", "/logs/1.log", 1 << 20)
    assert (launch.leases, launch.uid) == (("/lease/0", "/lease/2"), None)
    assert (launch.max_processes, launch.unkillable_s, launch.rules.memory_mib) == (7, 60, 900)
    assert b"GFLOW_JOB_ID=1\0" in launch.extra and b"CUDA_VISIBLE_DEVICES=" in launch.extra


def test_uid_below_the_lowest_starts_on_no_target(stage, monkeypatch):
    """`people.min_uid` came, or was raised, after the submission."""
    settings = SimpleNamespace(is_system=True, config={"people.min_uid": 2})
    monkeypatch.setattr(stage.executor, "_settings", settings)
    monkeypatch.setattr("gflow.daemon.execution.executor.why_unusable", lambda uid, name: "")
    stage.runs(running(1, uid=1), running(2, uid=1, target="cluster"))
    problem = "StartFailed: uid 1 is below people.min_uid, which is 2"
    assert [str(ended.end.problem) for ended in stage.ends] == [problem, problem]
    assert not stage.target.started


def test_job_on_a_cluster_goes_on_when_its_account_is_locked(stage, monkeypatch):
    """After a restart it is started again, so that the cluster is asked for it."""
    monkeypatch.setattr(
        stage.executor, "_settings", SimpleNamespace(is_system=True, config={"people.min_uid": 0})
    )
    monkeypatch.setattr("gflow.daemon.execution.executor.why_unusable", lambda uid, name: "it is locked")
    monkeypatch.setattr(stage.executor, "_launch", lambda job: SimpleNamespace(job=job, run=job.key))
    stage.executor.start(running(1, target="cluster"))
    stage.executor.start(running(2))
    assert [launch.job.number for launch in stage.target.started] == [1]
    assert [str(ended.end.problem) for ended in stage.ends] == ["StartFailed: it is locked"]


@pytest.mark.parametrize(("address", "why"), [("gone", "the stored text gone is gone"), ("bug", "'a bug'")])
def test_a_job_that_cannot_be_started_ends_and_the_others_start(stage, address, why):
    stage.runs(running(1, environ=address), running(2, 0))
    assert [launch.job.number for launch in stage.target.started] == [2]
    assert [(ended.run.key, str(ended.end.problem)) for ended in stage.ends] == [
        (job_key(1), f"StartFailed: {why}")
    ]


def test_a_stop_tells_the_target_what_the_log_shall_say(stage):
    job = running(1, 0)
    stage.runs(job)
    job.stopping, job.reason = (
        JobState.CANCELLED,
        reasons.Reason(reasons.ReasonKind.CANCELLED_BY_USER, "root"),
    )
    stage.executor([Stop(job_key(1), 1, now=True)])
    assert stage.target.stopped == [(Run(job_key(1), 1), True)]
    assert stage.target.reasons[0].startswith("was cancelled by root after ")


def test_an_act_that_fails_takes_none_along(stage, monkeypatch):
    stage.runs(running(1, 0))

    def broken(*about, **how):
        raise ValueError("a bug")

    monkeypatch.setattr(stage.target, "stop", broken)
    stage.executor([Stop(job_key(1), 1), Warn(job_key(1), 1, 10), Forget(job_key(1), 1)])
    assert stage.target.signalled == [(Run(job_key(1), 1), 10)]
    assert stage.target.forgotten == [Run(job_key(1), 1)]


def test_job_with_unknown_python_does_not_hang(stage):
    async def run():
        stage.runs(running(1, 0, shared=True, gpu_memory_mib=100))
        while not stage.ends:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 20))
    assert str(stage.ends[0].end.problem) == "StartFailed: no thread to be had"
    assert not stage.target.started


def test_the_shims_and_the_engine_mean_the_same_by_a_lost_lease():
    assert gpu_leases.LEASED == str(reasons.LEASED)
    assert f'"{reasons.LEASED}"' in Path(gpu_leases.__file__).parent.joinpath("native/main.c").read_text()


def test_shims_and_engine_mean_the_same_by_a_deferred_start():
    assert outcome.DEFERRED == str(reasons.DEFERRED)
    code = Path(gpu_leases.__file__).parent.joinpath("native/main.c").read_text()
    assert f'"{reasons.DEFERRED}: ' in code
    named = re.search(r"is_shortage\(int error\) \{(.*?)\}", code, re.DOTALL)[1]
    assert {getattr(errno, name) for name in re.findall(r"\bE[A-Z]+\b", named)} == outcome.SHORTAGES


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "Deferred: Too many open files"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Deferred: Cannot allocate memory"),
        (MemoryError(), "Deferred: MemoryError"),
        (OSError(errno.EACCES, "Permission denied"), "StartFailed: Permission denied"),
    ],
)
def test_start_that_fails_for_want_of_something_is_deferred(stage, monkeypatch, error, problem):
    def fails(launch):
        raise error

    monkeypatch.setattr(stage.target, "start", fails)
    stage.runs(running(1, 0))
    assert [str(ended.end.problem) for ended in stage.ends] == [problem]


def test_job_environment_has_its_deadline() -> None:
    from gflow.daemon.execution.environment import job_variables
    from tests.unit.builders import job

    told = job_variables(job(time_limit_s=60, requeue=True, started_boot=1000.0), None, "")
    assert (told["GFLOW_DEADLINE"], told["GFLOW_REQUEUE"]) == ("1060.000", "1")
    assert {"GFLOW_DEADLINE", "GFLOW_REQUEUE"}.isdisjoint(job_variables(job(started_boot=1000.0), None, ""))
