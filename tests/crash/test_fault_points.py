"""A kill at each fault point: nothing acknowledged is lost, nothing runs twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gflow.fault_points import POINTS
from tests.crash.load import Client, judge
from tests.harness import Box, wait_until

FLAGS = ("--simulate-gpus", "2x80G", "--cpus", "4")


@pytest.mark.parametrize("nth", [1, 3, 17])
@pytest.mark.parametrize("name", POINTS)
def test_killed_at_a_persistence_point(box: Box, name: str, nth: int) -> None:
    """Die the nth time the point is passed, under load; then come back and go on."""
    if name == "adopt.before":
        nth = 1
        box.up(*FLAGS)
        box.submit("sleep", "0.3")
        box.kill9()
    box.up(*FLAGS, env={"GFLOW_FAULT": f"{name}:{nth}"}, wait=False)
    clients = [Client(box, number, seed=nth * 100 + number) for number in range(4)]
    for client in clients:
        client.most = 8
        client.start()
    assert box.daemon is not None
    assert box.daemon.wait(30) == -9, f"{name}:{nth} was never passed"
    box.up()
    for client in clients:
        client.join(30)
    verdict = judge(box, clients)
    assert verdict.acknowledged == 32
    assert verdict.clean, verdict
    wait_until(lambda: not list((box.data / "run").iterdir()), what="run records to be forgotten")


def test_kill_before_answer_retry_finds_its_job(box: Box) -> None:
    box.up(*FLAGS, env={"GFLOW_FAULT": "turn.after-commit:2"})  # first come the start and the GPUs
    body = {"token": "the-same-token", "jobs": [box.job_request(["true"])]}
    with pytest.raises(OSError):
        box.api("POST", "/jobs", body)
    box.up()
    assert list(box.jobs()) == [1]
    status, answer = box.api("POST", "/jobs", body)
    assert (status, answer["jobs"][0]["id"]) == (201, 1)
    assert list(box.jobs()) == [1]
    other = {"token": "another-token", "jobs": [box.job_request(["true"])]}
    assert box.api("POST", "/jobs", other)[1]["jobs"][0]["id"] == 2


def test_gbatch_itself_retries_with_its_token(box: Box) -> None:
    """The daemon dies after the commit and before the answer; a new one comes up; one job, one id."""
    import subprocess

    from tests.harness import BIN

    box.up(*FLAGS, env={"GFLOW_FAULT": "turn.after-commit:2"})
    client = subprocess.Popen([str(BIN / "gbatch"), "true"], env=box.env, cwd=box.work, stdout=-1, text=True)
    assert box.daemon is not None
    box.daemon.wait(20)
    box.up()
    assert client.communicate(timeout=20)[0] == "Submitted batch job 1\n"
    assert list(box.jobs()) == [1]


def test_judge_catches_answer_before_commit(box: Box) -> None:
    """A test of the test: the same load and the same judge must find the mutant's lies."""
    box.program = [sys.executable, str(Path(__file__).with_name("early_answer_daemon.py"))]
    box.up(*FLAGS)
    clients = [Client(box, number, seed=number) for number in range(4)]
    for client in clients:
        client.start()
    wait_until(lambda: sum(len(client.acknowledged) for client in clients) >= 10)
    box.kill9()
    for client in clients:
        client.stopped.set()
    for client in clients:
        client.join(30)
    box.program = [sys.executable, "-m", "gflow", "gflowd", "run"]
    box.up()
    verdict = judge(box, clients)
    assert verdict.lost or verdict.doubled, json.dumps(verdict._asdict())
