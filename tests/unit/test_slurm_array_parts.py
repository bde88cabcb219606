"""Arrays that exceed a limit of Slurm: in parts, each task once, held back and fed as room appears."""

from __future__ import annotations

import os
import random
import re

import pytest

from gflow.core.ids import job_key
from gflow.core.model import ArrayProgress
from gflow.core.task_set import TaskSet, parse_tasks
from gflow.targets.port import End, Run
from gflow.targets.slurm.array_parts import halve, other_parts, parts_of
from gflow.targets.slurm.commands.command_runner import CommandResult
from gflow.targets.slurm.submission import read_tag

from .test_slurm_worker import DOWN, FakeSlurm, World, launch

LIMIT = (
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates policy"
)


def test_set_between_and_shifted():
    for text in ("0-99", "0-98:7", "3,5,10-30:5,40-90", "0-98:2,1-99:2", "7"):
        tasks = parse_tasks(text)
        assert tasks.last == max(tasks)
        for first, last in ((0, 200), (10, 20), (11, 11), (30, 5), (-5, 3), (95, 300)):
            assert list(tasks.between(first, last)) == [one for one in tasks if first <= one <= last], text
        assert list(tasks.shifted(5)) == [one + 5 for one in tasks]
    assert list(TaskSet().between(0, 9)) == []


def test_parts_keep_below_the_limit_and_have_every_task_once():
    tasks = parse_tasks("5-2400,8900-9000:50")
    parts = parts_of(tasks, 1001)
    assert [one.number for one in parts] == [0, 1001, 2002, 8900] and [p.offset for p in parts][-1] == 8008
    assert sorted(task for part in parts for task in part.tasks) == list(tasks)
    assert all(0 <= task - part.offset < 1001 for part in parts for task in part.tasks)
    rest = other_parts(tasks, parts[:2], 1001)
    assert [one.number for one in rest] == [2002, 8900]
    first, second = halve(parse_tasks("0-98:2,1"))
    assert (len(first), len(second)) == (26, 25) and first.last < second.first


class ArraySlurm(FakeSlurm):
    """Knows the tasks of arrays. `room`: tasks that it takes; `size`: MaxArraySize."""

    def __init__(self) -> None:
        super().__init__()
        self.room, self.size, self.calls = 10**9, 1001, 0
        self.tasks: dict[str, dict[int, str]] = {}
        self.caps: list[str] = []

    def max_array_size(self) -> int:
        return self.size

    def active(self) -> int:
        return sum(state != "COMPLETED" for tasks in self.tasks.values() for state in tasks.values())

    def submit(self, script, environ, cwd, umask, *, test=False):
        self.calls += 1
        text, _, cap = re.search(r"--array=(\S+)", script)[1].partition("%")
        indices = list(parse_tasks(text))
        assert max(indices) < self.size
        if self.active() + len(indices) > self.room:
            return CommandResult(False, "", LIMIT)
        result = super().submit(script, environ, cwd, umask)
        self.tasks[str(100 + self.submitted)] = dict.fromkeys(indices, "PENDING")
        self.caps.append(cap)
        return result

    def queue(self):
        self.asked += 1
        if self.is_down:
            return DOWN
        lines = [
            f"{id}_{index}|{id}|{id}|{index}|{state}|Priority|n1|{self.comments[id]}"
            for id, tasks in self.tasks.items()
            for index, state in tasks.items()
        ]
        return CommandResult(True, "\n".join(lines))

    def waiting(self) -> list[tuple[str, int]]:
        return [
            (id, index)
            for id, tasks in self.tasks.items()
            for index, state in tasks.items()
            if state == "PENDING"
        ]


class ArrayWorld(World):
    """Runs tasks as the script of a job does: they claim their token, and leave an exit record."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.slurm = ArraySlurm()
        self.worker = self.new_worker()
        self.ran: list[int] = []

    def run(self, id: str, index: int, code: int = 0) -> None:
        comment = self.slurm.comments[id]
        tagged = read_tag(comment, comment.split(":")[1], index)
        assert tagged is not None
        self.slurm.tasks[id][index] = "COMPLETED"
        self.begin(tagged.run, f"{id}_{index}", tagged.candidate)
        self.folder.put(tagged.run, "exit", f"{code} \n".encode())
        self.ran.append(int(tagged.run.partition("_")[2].partition(".")[0]))

    def ended(self) -> dict[Run, End]:
        return {one.run: one.end for one in self.ends}


@pytest.fixture
def world(tmp_path):
    return ArrayWorld(tmp_path)


def test_array_above_the_largest_index_is_several_arrays(world):
    world.worker.start(launch(array="0-2500"))
    world.turns(4)
    assert [len(tasks) for tasks in world.slurm.tasks.values()] == [1001, 1001, 499]
    assert [tag.rpartition(":")[2] for tag in world.slurm.comments.values()] == [
        "0",
        "1001+1001",
        "2002+2002",
    ]
    for id, index in world.slurm.waiting():
        world.run(id, index, 3 if (id, index) == ("103", 498) else 0)
    world.turns(3)
    assert sorted(world.ran) == list(range(2501)) and world.slurm.cancelled == []
    assert len(world.ends) == 2501
    assert world.ended()[Run(job_key(1, 2500), 1)] == End(3)
    assert world.ended()[Run(job_key(1, 1001), 1)] == End(0)


def test_array_above_the_submit_limit_is_fed_as_tasks_end(world):
    world.slurm.room = 30
    world.worker.start(launch(array="1-200"))
    most = 0
    for _ in range(200):
        world.turns()
        most = max(most, world.slurm.active())
        for id, index in world.slurm.waiting()[: random.Random(most).randint(1, 9)]:
            world.run(id, index)
        if len(world.ran) == 200:
            break
    world.turns(3)
    assert sorted(world.ran) == list(range(1, 201)) and 20 <= most <= 30
    assert len(world.ends) == 200 and set(world.ended().values()) == {End(0)}
    assert world.slurm.calls < 100  # not one for each task
    reasons = {status.reason.partition(":")[0] for status in world.statuses}
    assert any("SubmitJobLimit" in reason for reason in reasons), reasons


def test_parts_of_an_array_with_a_cap_follow_one_another(world):
    world.worker.start(launch(array="0-1999", max_concurrent=5))
    world.turns(4)
    assert list(world.slurm.tasks) == ["101"] and world.slurm.caps == ["5"]
    for id, index in world.slurm.waiting():
        world.run(id, index)
    world.turns(4)
    assert list(world.slurm.tasks) == ["101", "102"]


def test_next_daemon_goes_on_with_the_parts(world):
    """Slurm has one part, is asked for a second one without an answer, and has not got the third."""
    world.slurm.room = 2002
    world.worker.start(launch(array="0-2999"))
    world.turns(2)
    assert list(world.slurm.tasks) == ["101", "102"]
    text = open(world.folder.path("1.1", "asked")).read().replace("1001 102 ", "1001 - ")
    world.folder.put("1.1", "asked", text.encode())
    assert text.startswith("0 101 0 0-1000\n1001 - 1001 1001-2001\n"), text
    for id, index in world.slurm.waiting()[:500]:
        world.run(id, index)
    made = launch(array="0-2999")
    made.job.progress = ArrayProgress(parse_tasks("500-2999"))
    world.worker = world.new_worker()
    world.worker.start(made)
    world.turns(3)
    world.slurm.room = 10**6
    world.turns(12, 10.0)
    for id, index in world.slurm.waiting():
        world.run(id, index)
    world.turns(3)
    assert sorted(world.ran) == list(range(3000))
    assert len(world.ends) == 2500 and set(world.ended().values()) == {End(0)}
    waiting = sum(tasks.__len__() for tasks in world.slurm.tasks.values())
    assert waiting == 3000  # no task was submitted twice


def test_waiting_task_of_a_later_part_is_cancelled_by_its_own_index(world):
    world.worker.start(launch(array="0-1500"))
    world.turns(3)
    world.worker.stop(Run(job_key(1, 1400), 1), now=False)
    world.turns(2)
    assert world.slurm.cancelled == ["102_399"]
    assert [one.run for one in world.ends] == [Run(job_key(1, 1400), 1)]
    assert not os.path.exists(world.folder.path("1_1400.1", "ticket"))
    world.worker.withdraw(Run(job_key(1), 1))
    world.turns(2)
    assert set(world.slurm.cancelled) == {"102_399", "101", "102"}


def test_retried_task_above_the_largest_index_has_an_offset(world):
    made = launch(array="", attempt=2)
    made.job.key = job_key(1, 1400)
    world.worker.start(made)
    world.turns(3)
    assert world.slurm.tasks == {"101": {399: "PENDING"}}
    world.run("101", 399)
    world.turns(2)
    assert world.ended() == {Run(job_key(1, 1400), 2): End(0)}


@pytest.mark.parametrize("is_noticed", [True, False])
def test_tasks_that_a_restarted_controller_ended_are_submitted_again(world, is_noticed):
    """Nodes refuse an id that they know: such tasks get another one, and no other task does."""
    world.worker.start(launch(array="0-9"))
    world.turns(2)
    world.run("101", 0)
    world.turns()
    world.slurm.is_down = is_noticed
    world.turns(4)
    world.slurm.is_down = False
    for index in (3, 4, 7):
        world.slurm.tasks["101"][index] = "NODE_FAIL"
    world.turns(6)
    assert world.slurm.tasks["102"] == dict.fromkeys((3, 4, 7), "PENDING")
    assert open(world.folder.path("1.1", "asked")).read() == "0 101 0 0-2,5-6,8-9\n1048576 102 0 3,4,7\n"
    made = launch(array="0-9")
    made.job.progress = ArrayProgress(parse_tasks("1-9"))
    world.worker = world.new_worker()
    world.worker.start(made)
    world.turns(3)
    for id, index in world.slurm.waiting():
        world.run(id, index)
    world.turns(3)
    assert sorted(world.ran) == list(range(10)) and list(world.slurm.tasks) == ["101", "102"]
    assert set(world.ended().values()) == {End(0)} and len(world.ended()) == 10
