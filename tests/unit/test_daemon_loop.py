"""Clients that wait for a job are woken at its end, for any kind of end."""

import asyncio
import time

import pytest

from gflow.core.effects import Start
from gflow.core.events import Cancel, Exited
from gflow.core.ids import job_key
from gflow.core.model import Block
from gflow.core.state.state import State
from gflow.daemon.loop.commands import SubmitCommand
from gflow.daemon.loop.loop import Loop
from gflow.daemon.loop.stored_state import reload
from gflow.store.memory import MemoryStore
from gflow.testing import gpus
from gflow.wire.requests import ParsedJob, References

from .builders import spec
from .machine import Machine, gpu


def play(scene, *specs, perform=lambda effects: None):
    """Run a scene on a loop that has taken these jobs."""

    async def run():
        loop = Loop(State(cpus=2, memory_mib=1024), MemoryStore(), perform, paranoid=True)
        jobs = [ParsedJob(spec=made, references=References(), blobs={}) for made in specs]
        await loop.submit(SubmitCommand(0, "root", "token", jobs, "cli"))
        await asyncio.wait_for(scene(loop), 5)

    asyncio.run(run())


async def turns():
    """Let everything happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)


async def waiter(loop, *job):
    """A client that waits for a job already."""
    task = asyncio.ensure_future(loop.wait_for_end(job_key(*job)))
    await turns()
    assert not task.done()
    return task


def cancel(loop, *job):
    return loop.ask(lambda at: Cancel(at=at, uid=0, keys=(job_key(*job),)))


def test_end_of_a_job_wakes_all_waiters():
    async def scene(loop):
        waiters = [await waiter(loop, 1) for _ in range(3)]
        loop.post(lambda at: Exited(at=at, key=job_key(1), attempt=1, code=3))
        assert [(await one).exit_code for one in waiters] == [3, 3, 3]
        assert (await loop.wait_for_end(job_key(1))).exit_code == 3

    play(scene, spec())


def test_a_job_that_never_was_ends_at_once():
    async def scene(loop):
        assert await loop.wait_for_end(job_key(7)) is None

    play(scene, spec())


def test_a_waiting_task_that_is_cancelled_is_heard():
    async def scene(loop):
        task = await waiter(loop, 1, 2)
        await cancel(loop, 1, 2)
        await turns()
        assert task.result().label == "1_2"

    play(scene, spec(array="0-3", hold=True))


def test_repeated_submission_makes_one_job():
    async def scene(loop):
        jobs = [ParsedJob(spec=spec(), references=References(), blobs={})]
        commands = [SubmitCommand(0, "root", "again", jobs, "cli") for _ in range(3)]
        together = await asyncio.gather(loop.submit(commands[0]), loop.submit(commands[1]))
        assert [*together, await loop.submit(commands[2])] == [(job_key(2),)] * 3

    play(scene, spec())


def test_a_job_starts_when_its_begin_time_comes():
    begin = time.time() + 0.02

    async def scene(loop):
        while not started:
            await asyncio.sleep(0.005)

    started = []

    def perform(effects):
        started.extend(time.time() for effect in effects if isinstance(effect, Start))

    play(scene, spec(begin_at=begin), perform=perform)
    assert len(started) == 1 and started[0] >= begin


@pytest.mark.parametrize("hold", [True, False], ids=["not begun", "begun"])
def test_a_task_that_never_starts_is_over_with_its_array(hold):
    async def scene(loop):
        task = await waiter(loop, 1, 3)
        await cancel(loop, 1)
        for number in range(0 if hold else 2):
            loop.post(lambda at, n=number: Exited(at=at, key=job_key(1, n), attempt=1, code=0))
        await turns()
        assert task.result().state.value == "Cancelled"

    play(scene, spec(array="0-3", hold=hold))


def test_a_task_that_never_started_is_known_afterwards():
    async def scene(loop):
        await cancel(loop, 1)
        assert (await loop.wait_for_end(job_key(1, 3))).state.value == "Cancelled"

    play(scene, spec(array="0-3", hold=True))


def test_listener_gets_each_change_until_it_leaves():
    async def scene(loop):
        with loop.track_changes() as first, loop.track_changes() as second:
            with loop.track_changes():
                pass
            await cancel(loop, 2)
            loop.post(lambda at: Exited(at=at, key=job_key(1), attempt=1, code=0))
            await turns()
        assert first == second == {job_key(1), job_key(2)}
        with loop.track_changes() as third:
            await cancel(loop, 3)
        assert (first, third) == ({job_key(1), job_key(2)}, {job_key(3)})
        await cancel(loop, 4)
        assert third == {job_key(3)}

    play(scene, spec(), *[spec(hold=True)] * 3)


def test_reloaded_state_knows_the_machine():
    """After a commit that failed: what no disk has must not be forgotten."""
    old = State(cpus=2, memory_mib=1024)
    old.machine.see_gpus(gpus(2))
    passing = {
        "foreign": {0: "bob's daemon"},
        "blocked": {1: Block("Lost", "")},
        "taken": {0: 100},
        "freed_at": {1: 5.0},
        "gpu_trouble": "the driver hangs",
        "leaving": True,
    }
    for name, value in passing.items():
        setattr(old.machine, name, value)
    new = reload(old, MemoryStore())
    assert {name: getattr(new.machine, name) for name in passing} == passing
    assert new.machine.gpus == old.machine.gpus


def test_reloaded_state_keeps_waiting_jobs_by_type_of_gpu():
    """The GPUs do not change afterwards, so that nothing else would sort the jobs again."""
    machine = Machine(gpu(0, "NVIDIA A100"), gpu(1, "NVIDIA H100"))
    for gpu_type in ("a100", "h100") * 2:  # two run, two wait
        machine.submit(gpus=1, gpu_type=gpu_type)
    before = set(machine.state.ready.ages)
    assert len(before) == 2
    assert set(reload(machine.state, machine.store).ready.ages) == before
