"""The command gflow status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import Box, wait_until
from tests.system import system


@pytest.fixture(scope="module")
def box(tmp_path_factory: Any) -> Iterator[Box]:
    """A running job with progress, one that waits for GPUs, a held one, failed ones."""
    made = Box(tmp_path_factory.mktemp("overview"))
    try:
        made.up("--simulate-gpus", "4x80G", "--cpus", "4")
        step = "gflow report step=40 steps=100 loss=0.5; sleep 600"
        made.submit("--gpus", "3", "--name", "train", "--time", "2h", "bash", "-c", step)
        made.submit("--gpus", "2", "--name", "next", "true")
        made.submit("--hold", "true")
        for _ in range(2):
            made.finished(made.submit("--name", "bad", "bash", "-c", "exit 3"))
        wait_until(lambda: made.job(1)["progress"])
        yield made
    finally:
        made.clean_up()


def test_page_shows_gpus_queue_own_jobs_and_failures(box: Box) -> None:
    text = box.ok("gflow", "status")
    for line in (
        "GPUs    4 (Simulated 80 GB): 1 free, 3 in use",
        "Queue   1 running, 2 waiting (1 held)",
        "Yours   1 running, 2 waiting (",
        "GPU 0,1,2, 40%, ",
        "  2  next   starts about ",
        "  bad (2 jobs: 5, 4) ended: ExitCode:3  → gjob log 5",
    ):
        assert line in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_has_counts_jobs_and_attention(box: Box) -> None:
    data = json.loads(box.ok("gflow", "status", "--json"))
    assert data["gpu_counts"] == {
        "total": 4, "free": 1, "used": 3, "reserved": 0, "restricted": 0, "blocked": 0,
    }  # fmt: skip
    assert (data["running"], data["waiting"], data["held"]) == (1, 2, 1)
    assert [job["id"] for job in data["my_running_jobs"]] == [1]
    assert [(job["id"], job["reason"].partition(":")[0]) for job in data["my_waiting_jobs"]] == [
        (2, "Resources")
    ]
    assert [(one["kind"], one["jobs"]) for one in data["attention"]] == [("failed", [5, 4])]


def test_waiting_tasks_of_an_array_count_in_the_queue_and_in_yours(box: Box) -> None:
    array = box.submit("--gpus", "2", "--array", "1-5", "--name", "tasks", "true")
    text = box.ok("gflow", "status")
    data = json.loads(box.ok("gflow", "status", "--json"))
    box.ok("gcancel", str(array))
    assert (data["waiting"], data["my_waiting"]) == (7, 7)
    assert {job["id"]: job["tasks"] for job in data["my_waiting_jobs"]} == {2: 1, array: 5}
    assert "5 tasks: Resources" in text and "  (1 more: gqueue --me)" in text, "the held job is not listed"


def test_drain_and_restriction_are_shown_until_they_are_lifted(box: Box) -> None:
    box.ok("gctl", "drain", "--reason", "new fans")
    box.ok("gctl", "set-gpus", "0-2")
    text = box.ok("gflow", "status")
    assert "the machine is drained, so no job starts: new fans  → gctl resume" in text
    assert "0 free, 3 in use, 1 restricted" in text
    box.ok("gctl", "resume")
    box.ok("gctl", "set-gpus", "all")
    assert "drained" not in box.ok("gflow", "status")


def test_argument_and_missing_daemon_are_one_sentence(box: Box, tmp_path: Any) -> None:
    done = box.run("gflow", "status", "17")
    assert done.returncode == 2 and "gjob show JOB" in done.stderr
    alone = box.run("gflow", "status", env={"HOME": str(tmp_path)})
    assert alone.returncode == 3
    assert alone.stderr.startswith("status: The gflow daemon is not running.")


def test_failures_of_other_users_are_not_shown() -> None:
    with system() as machine:
        machine.up()
        machine.box.finished(machine.ann.submit("--name", "bad", "false"))
        assert "bad (job 1)" in machine.ann.ok("gflow", "status")
        assert "Nothing needs attention." in machine.bob.ok("gflow", "status")
