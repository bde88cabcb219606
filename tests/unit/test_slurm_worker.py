"""The Slurm worker with a controller that forgets, answers late or not at all, and starts jobs unseen."""

from __future__ import annotations

import os

import pytest

from gflow.core.events import RemoteStatus
from gflow.core.model import ArrayProgress
from gflow.core.reasons import WITHDRAWN, parse
from gflow.core.task_set import parse_tasks
from gflow.targets.port import End, Ended, Launch, Run
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.shared_folder import SharedFolder
from gflow.targets.slurm.commands.slurm_cli import CommandResult
from gflow.targets.slurm.tracker import Tracker
from gflow.targets.slurm.worker import SlurmWorker

from .builders import job

DOWN = CommandResult(False, "", "Unable to contact slurm controller", True)


class FakeSlurm:
    """Takes submissions and shows them; what goes wrong is set by the test."""

    def __init__(self) -> None:
        self.comments: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.cancelled: list[str] = []
        self.submitted = 0
        self.asked = 0
        self.is_down = False
        self.loses_answer = False
        self.refuses = ""

    def submit(self, script, environ, cwd, umask, *, test=False):
        if self.is_down:
            return DOWN
        if self.refuses:
            return CommandResult(False, "", self.refuses)
        self.submitted += 1
        number = str(100 + self.submitted)
        comment = script.partition("--comment=")[2].partition("\n")[0]
        self.comments[number], self.states[number] = comment, "PENDING"
        return DOWN if self.loses_answer else CommandResult(True, number)

    def queue(self):
        self.asked += 1
        if self.is_down:
            return DOWN
        lines = [
            f"{number}|{number}|{number}|N/A|{self.states[number]}|Priority|n1|{comment}"
            for number, comment in self.comments.items()
        ]
        return CommandResult(True, "\n".join(lines))

    def cancel(self, ids, signal=""):
        self.cancelled += [f"{signal}:{id}" if signal else id for id in ids]
        for id in ids:
            if not signal and self.states.get(id) == "PENDING" and not self.is_down:
                self.states[id] = "CANCELLED"
        return DOWN if self.is_down else CommandResult(True, "")

    def verdict(self, id, tag):
        return None


class World:
    """A worker, its shared folder, and a clock that the test moves."""

    def __init__(self, folder) -> None:
        self.now = 1000.0
        self.folder, self.slurm = SharedFolder(folder), FakeSlurm()
        self.statuses: list[RemoteStatus] = []
        self.ends: list[Ended] = []
        self.worker = self.new_worker()

    def new_worker(self) -> SlurmWorker:
        told = self.statuses.extend, self.ends.append
        return SlurmWorker(Tracker(Cluster(), self.folder, self.slurm, *told, lambda: self.now))

    def turns(self, count: int = 1, seconds: float = 2.0) -> None:
        for _ in range(count):
            self.worker.turn()
            self.now += seconds

    def begin(self, name: str, id: str, bid: int = 0) -> None:
        """The job on its node renames its claim token."""
        os.rename(self.folder.path(name, "ticket"), self.folder.path(name, f"claim.{bid}.{id}"))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def launch(number=1, *, attempt=1, **fields) -> Launch:
    made = job(number, attempt=attempt, target="slurm", on="slurm", cwd="/", **fields)
    if made.spec.array:
        made.progress = ArrayProgress(parse_tasks(made.spec.array))
    log = "/tmp/gflow-test.log"
    return Launch(made, None, b"PATH=/bin", b"GFLOW_ATTEMPT=1\0", log, log, 0, (), None)


RUN = Run(job(1).key, 1)


def test_job_from_submission_to_end(world):
    world.worker.start(launch())
    world.turns(2)
    assert (world.slurm.submitted, world.statuses[-1].reason) == (
        1,
        "Priority: others are before it in Slurm's queue",
    )
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns(2)
    assert (world.statuses[-1].running, world.statuses[-1].nodes) == (True, "n1")
    world.folder.put("1.1", "exit", b"3 \n")
    world.turns()
    assert world.ends == [Ended(RUN, End(3))]
    assert world.slurm.cancelled == []


def test_a_lost_answer_makes_no_second_job(world):
    world.slurm.loses_answer = True
    world.worker.start(launch())
    world.turns(10)
    assert world.slurm.submitted == 1


def test_new_worker_finds_submitted_job(world):
    world.worker.start(launch())
    world.turns(2)
    world.worker = world.new_worker()
    world.worker.start(launch())
    world.turns(4)
    assert world.slurm.submitted == 1


def test_a_controller_that_is_down_is_asked_again_and_again(world):
    world.slurm.is_down = True
    world.worker.start(launch())
    world.turns(5)
    assert world.statuses[-1].reason.startswith("SlurmUnreachable")
    assert world.ends == []
    world.slurm.is_down = False
    world.turns(40)
    assert world.slurm.submitted == 1


def test_forgotten_job_is_resubmitted_first_copy_cannot_run(world):
    world.worker.start(launch())
    world.turns(2)
    forgotten = world.slurm.comments.pop("101")
    world.turns(20)
    assert world.slurm.submitted == 2
    world.slurm.comments["101"] = forgotten  # it was there all the time
    world.begin("1.1", "102")
    with pytest.raises(FileNotFoundError):
        world.begin("1.1", "101")


def test_begun_job_is_never_resubmitted(world):
    world.worker.start(launch())
    world.turns(2)
    world.begin("1.1", "101")
    del world.slurm.comments["101"]
    world.turns(40)
    assert world.slurm.submitted == 1
    assert world.statuses[-1].reason.startswith("Unknown")
    assert world.ends == [], "unknown is not failed"
    world.turns(1, 400)
    world.turns(2)
    assert world.ends == [Ended(RUN, End(None, None, parse("Lost")))]


def test_a_refusal_is_the_end(world):
    world.slurm.refuses = "sbatch: error: Batch job submission failed: Invalid qos specification"
    world.worker.start(launch())
    world.turns()
    assert world.ends == [Ended(RUN, End(None, None, parse("StartFailed: Slurm: Invalid qos specification")))]


def test_refusal_of_returning_controller_is_not_final(world):
    world.slurm.is_down = True
    world.worker.start(launch())
    world.turns(2)
    world.slurm.is_down, world.slurm.refuses = False, "Requested node configuration is not available"
    world.turns(5)
    assert world.ends == []
    world.slurm.refuses = ""
    world.turns(10)
    assert world.slurm.submitted == 1


def test_cancelled_before_it_began(world):
    world.worker.start(launch())
    world.turns(2)
    world.worker.stop(RUN, now=False)
    assert world.ends == [Ended(RUN, End(None, None, WITHDRAWN))]
    with pytest.raises(FileNotFoundError):
        world.begin("1.1", "101")
    world.turns(2)
    assert "101" in world.slurm.cancelled


def test_cancelled_while_the_controller_is_down(world):
    """It is certain at once that it never begins; Slurm is told when it can be."""
    world.worker.start(launch())
    world.turns(2)
    world.slurm.is_down = True
    world.worker.stop(RUN, now=False)
    assert world.ends == [Ended(RUN, End(None, None, WITHDRAWN))]
    world.turns(3)
    world.slurm.is_down = False
    world.slurm.cancelled.clear()
    world.turns(20)
    assert "101" in world.slurm.cancelled


def test_cancelled_while_it_runs(world):
    """TERM first; what is left is ended after the grace time."""
    world.worker.start(launch(grace_s=30))
    world.turns(2)
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns()
    world.worker.stop(RUN, now=False)
    assert world.slurm.cancelled == ["TERM:101"]
    world.turns(5)
    assert world.slurm.cancelled == ["TERM:101"]
    world.turns(15)
    assert "101" in world.slurm.cancelled
    world.slurm.states["101"] = "CANCELLED"
    world.turns(5)
    assert world.ends == [Ended(RUN, End(None, None, parse("CancelledThere")))]


def test_withdraw_leaves_a_begun_job(world):
    world.worker.start(launch())
    world.turns(2)
    world.begin("1.1", "101")
    world.worker.withdraw(RUN)
    world.turns(2)
    assert world.ends == []


def test_race_has_one_claim_token_and_cancels_losers(world):
    world.worker.start(launch(race=("n1_gpu4", "n4_gpu1")))
    world.turns(2)
    assert world.slurm.submitted == 2
    world.begin("1.1", "102", bid=1)
    with pytest.raises(FileNotFoundError):
        world.begin("1.1", "101")
    world.turns(2)
    assert world.slurm.cancelled == ["101"]


def test_forgotten_job_is_cancelled(world):
    world.worker.start(launch())
    world.turns(2)
    world.worker.forget(RUN)
    world.worker.start(launch(2))
    world.turns(4)
    assert "101" in world.slurm.cancelled
    assert "102" not in world.slurm.cancelled


def test_new_daemon_cancels_no_unknown_job(world):
    world.worker.start(launch(1))
    world.worker.start(launch(2))
    world.turns(2)
    world.worker = world.new_worker()
    world.worker.start(launch(1))
    world.turns(3)
    assert world.slurm.cancelled == []
    world.worker.start(launch(2))
    world.turns(20)
    assert (world.slurm.cancelled, world.slurm.submitted) == ([], 2)


def test_unwanted_job_is_cancelled_by_tag_later(world):
    world.worker.start(launch(1))
    world.worker.start(launch(2))
    world.turns(2)
    world.worker = world.new_worker()
    world.worker.start(launch(2))
    world.turns(30)
    assert set(world.slurm.cancelled) == {"101"}


def test_a_number_that_is_given_out_again_is_not_cancelled(world):
    """It was to be cancelled; the controller was killed, forgot its job and gave the number to another."""
    world.worker.start(launch(1))
    world.worker.start(launch(2))
    world.turns(1)
    world.slurm.is_down = True
    world.turns(5)
    world.worker.stop(RUN, now=False)
    world.slurm.cancelled.clear()
    world.slurm.comments["101"] = world.slurm.comments.pop("102")
    world.slurm.is_down = False
    world.turns(30)
    assert world.slurm.cancelled == []


def test_job_ended_by_controller_restart_is_resubmitted(world):
    world.worker.start(launch())
    world.turns(2)
    world.slurm.is_down = True
    world.turns(3)
    world.slurm.is_down = False
    world.slurm.states["101"] = "CANCELLED"
    world.turns(5)
    assert (world.slurm.submitted, world.ends) == (2, [])
    world.begin("1.1", "102")
    world.folder.put("1.1", "exit", b"0 \n")
    world.turns(2)
    assert world.ends == [Ended(RUN, End(0))]


def test_job_ended_by_controller_restart_is_resubmitted_a_few_times(world):
    world.worker.start(launch())
    world.turns(2)
    world.slurm.states["101"] = "CANCELLED"
    world.turns(2)
    assert world.ends == [Ended(RUN, End(None, None, parse("CancelledThere")))], "another user did that"
    world.worker.start(launch(2))
    world.slurm.is_down = True
    world.turns(2)
    world.slurm.is_down = False
    for _ in range(10):
        world.turns(3)
        world.slurm.states |= dict.fromkeys(world.slurm.states, "FAILED")
    assert world.slurm.submitted == 1 + 1 + 3


def test_verdict_is_requested_with_tag_of_job(world):
    asked = []
    world.slurm.verdict = lambda id, tag: asked.append((id, tag))
    world.worker.start(launch(1))
    world.turns(2)
    world.begin("1.1", "101")
    tag = world.slurm.comments.pop("101")
    world.turns(3)
    assert set(asked) == {("101", tag)}


def test_withdrawn_array_ends_with_its_begun_tasks(world):
    world.worker.start(launch(array="0-2"))
    world.turns(2)
    assert world.slurm.submitted == 1
    world.begin("1_1.1", "101_1")
    world.turns()
    world.worker.stop(Run(job(1).key, 1), now=True)
    assert world.ends == []
    world.folder.put("1_1.1", "exit", b"0 \n")
    world.turns(2)
    task = Run(job(1, task=1).key, 1)
    assert world.ends == [Ended(task, End(0)), Ended(RUN, End(None, None, WITHDRAWN))]


def test_a_thousand_jobs_are_asked_about_together(world):
    """One question an interval, however many wait; and ever longer intervals while nothing changes."""
    for number in range(1, 1001):
        world.worker.start(launch(number))
    world.turns(1, 1.0)
    assert world.slurm.submitted == 1000
    before = world.slurm.asked
    world.turns(20, 1.0)
    busy = world.slurm.asked - before
    assert 2 <= busy <= 20 / Cluster().poll_secs
    world.turns(30, 20.0)
    assert world.slurm.asked - before - busy <= 600 / Cluster().poll_most_secs + 1
    assert (world.slurm.submitted, len(world.slurm.cancelled)) == (1000, 0)


def test_nothing_to_do_means_nothing_is_asked(world):
    assert world.worker.turn() is None
