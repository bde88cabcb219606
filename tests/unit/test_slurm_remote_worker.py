"""The Slurm worker over a connection that breaks before or after any of its calls."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress

import pytest

from gflow.core.reasons import ReasonKind
from gflow.targets.port import Run
from gflow.targets.slurm.background_calls import InlineCalls
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.ssh.remote_folder import RemoteFolder
from gflow.targets.slurm.ssh.ssh_runner import ScriptResult
from gflow.targets.slurm.tracker import Tracker
from gflow.targets.slurm.worker import SlurmWorker

from .builders import job
from .test_slurm_remote_folder import SHELLS, LocalShell
from .test_slurm_worker import DOWN, FakeSlurm, launch


class Connection(LocalShell):
    """A connection of which the call number `fails_at` does not arrive, or its answer does not."""

    fails_at = -1
    loses_answer = False
    is_away = False
    count = 0

    def breaks(self) -> bool:
        self.count += 1
        return self.count == self.fails_at or self.is_away

    def run_script(self, body, *, timeout_s, umask=0o077):
        breaks = self.breaks()
        if breaks and not self.loses_answer:
            return ScriptResult(None, error="cut")
        result = super().run_script(body, timeout_s=timeout_s, umask=umask)
        return ScriptResult(None, error="cut") if breaks else result


class FarSlurm(FakeSlurm):
    """The commands of Slurm behind the same connection."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection

    def _far(self, call):
        breaks = self.connection.breaks()
        if breaks and not self.connection.loses_answer:
            return DOWN
        result = call()
        return DOWN if breaks else result

    def submit_after(self, before, script, environ, cwd, umask):
        def call():
            assert LocalShell.run_script(self.connection, before, timeout_s=10).code == 0
            return self.submit(script, environ, cwd, umask)

        return self._far(call)

    def queue(self):
        return self._far(super().queue)

    def cancel(self, ids, signal="", **more):
        return self._far(lambda: FakeSlurm.cancel(self, ids, signal, **more))


class FarWorld:
    """A worker, the cluster, and the jobs there: a job that finds its token runs at once."""

    def __init__(self, tmp_path) -> None:
        self.now = 1000.0
        self.connection = Connection(SHELLS[0], str(tmp_path))
        self.slurm = FarSlurm(self.connection)
        self.statuses, self.ends, self.ran = [], [], []
        self.worker = self.new_worker()

    def new_worker(self) -> SlurmWorker:
        # The clock of the folder is the worker's: a look is due in every turn.
        self.folder = RemoteFolder(self.connection, "~/.gflow", lambda: "abc", 10, lambda: self.now * 20)
        told = self.statuses.extend, self.ends.append
        return SlurmWorker(
            Tracker(Cluster(), self.folder, self.slurm, *told, InlineCalls(), lambda: self.now, name="far")
        )

    def turns(self, count: int, *, jobs_run: bool = True) -> None:
        for _ in range(count):
            self.worker.turn()
            if jobs_run:
                self.run_jobs()
            self.now += 3.0

    def run_jobs(self) -> None:
        for number, state in list(self.slurm.states.items()):
            if state == "PENDING":
                name = self.slurm.tags[number].split(":")[2]
                path = f"{self.connection.home}/.gflow/runs/abc/{name}"
                self.slurm.states[number] = "COMPLETED"
                with suppress(FileNotFoundError):  # a copy of the job, or withdrawn
                    os.rename(f"{path}.ticket", f"{path}.claim.0.{number}")
                    self.ran.append(name)
                    with open(f"{path}.exit", "w") as file:
                        file.write("3 \n")


def calls_of_a_story(tmp_path) -> int:
    world = FarWorld(tmp_path)
    _play(world)
    return world.connection.count


def _play(world: FarWorld) -> None:
    """Two jobs run; one is cancelled while it waits in Slurm's queue."""
    for number in (1, 2, 3):
        world.worker.start(launch(number))
    world.turns(2, jobs_run=False)
    world.worker.stop(Run(job(3).key, 1), now=False)
    world.turns(6, jobs_run=False)
    world.turns(16)


@pytest.mark.parametrize("loses_answer", [False, True], ids=["request", "answer"])
def test_call_that_is_lost_at_any_point_loses_and_doubles_nothing(tmp_path, loses_answer):
    calls = calls_of_a_story(tmp_path / "all")
    for fails_at in range(1, calls + 1):
        world = FarWorld(tmp_path / str(fails_at))
        world.connection.fails_at, world.connection.loses_answer = fails_at, loses_answer
        _play(world)
        ends = {ended.run.name: ended.end for ended in world.ends}
        assert len(world.ends) == 3, (fails_at, world.ends)
        assert ends["1.1"].code == ends["2.1"].code == 3, (fails_at, ends)
        assert sorted(world.ran) == ["1.1", "2.1"], (fails_at, world.ran)
        assert ends["3.1"].problem.kind is ReasonKind.WITHDRAWN, (fails_at, ends)


def test_next_daemon_goes_on_where_the_last_one_was_killed(tmp_path):
    calls = calls_of_a_story(tmp_path / "all")
    for after in range(1, calls, 2):
        world = FarWorld(tmp_path / str(after))
        for number in (1, 2):
            world.worker.start(launch(number))
        while world.connection.count < after and not world.ends:
            world.turns(1)
        if world.ends:
            break
        world.worker = world.new_worker()
        for number in (1, 2):
            world.worker.start(launch(number))
        world.turns(16)
        assert sorted(world.ran) == ["1.1", "2.1"], after
        assert {(ended.run.name, ended.end.code) for ended in world.ends} == {("1.1", 3), ("2.1", 3)}


def test_cluster_that_is_away_is_asked_with_pauses_and_its_jobs_keep_their_state(tmp_path):
    world = FarWorld(tmp_path)
    world.worker.start(launch(1))
    world.turns(2, jobs_run=False)
    world.connection.is_away = True
    world.turns(1, jobs_run=False)
    world.worker.start(launch(2))
    world.worker.turn()
    assert "far unreachable since " in world.statuses[-1].reason  # at once
    before = world.connection.count
    world.turns(100, jobs_run=False)
    assert world.connection.count - before < 20
    reasons = {status.key: status.reason for status in world.statuses}
    assert all("far unreachable since " in reason for reason in reasons.values()), reasons
    assert not world.ends and world.worker.connection.is_down
    world.connection.is_away = False
    world.turns(40)
    assert sorted(world.ran) == ["1.1", "2.1"] and len(world.ends) == 2
    assert not world.worker.connection.is_down


def test_job_that_no_daemon_has_submitted_is_cancelled_without_the_cluster(tmp_path):
    world = FarWorld(tmp_path)
    world.connection.is_away = True
    world.worker.start(launch(1)._replace(is_new=True))
    world.worker.start(launch(2))
    world.worker.start(launch(3, array="1-2")._replace(is_new=True))
    world.turns(2)
    for number in (1, 2, 3):
        world.worker.stop(Run(job(number).key, 1), now=False)
    assert [ended.run.name for ended in world.ends] == ["1.1", "3.1"]  # the other one may run there
    for number in (1, 3):
        world.worker.forget(Run(job(number).key, 1))
    world.connection.is_away = False
    world.turns(30)
    assert [ended.run.name for ended in world.ends] == ["1.1", "3.1", "2.1"] and not world.ran


def test_orders_of_one_turn_share_their_calls(tmp_path):
    world = FarWorld(tmp_path)
    world.turns(1)
    for number in range(1, 101):
        world.worker.start(launch(number))
    before = world.connection.count
    world.turns(1, jobs_run=False)
    # The folder is opened, looked at and written to once; then sbatch for each, and the queue.
    rest = world.connection.count - before - world.slurm.submitted
    assert world.slurm.submitted == 100 and rest <= 6
    before = world.connection.count
    for number in range(1, 101):
        world.worker.stop(Run(job(number).key, 1), now=False)
    world.turns(1, jobs_run=False)
    assert world.connection.count - before <= 8
    world.turns(8)
    assert len(world.ends) == 100 and not world.ran


def test_numbers_are_not_shared_between_two_daemons(tmp_path):
    connection = Connection(SHELLS[0], str(tmp_path))
    ids = itertools.count()
    first, second = (RemoteFolder(connection, "~/.gflow", lambda: f"d{next(ids)}", 10) for _ in range(2))
    for folder in (first, second):
        folder.daemon_id()
        folder.write(["1.1"], [])
    assert first.folder != second.folder and first.withdraw("1.1")
    assert second.look()["1.1"].has_token
