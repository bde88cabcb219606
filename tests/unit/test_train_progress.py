"""Saying how far training is: cheap, never waiting, never failing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from gflow.metric_names import MOST_METRICS
from gflow.ml.train.progress import Reporter


@pytest.fixture
def ear(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "p.sock"))
        sock.setblocking(False)
        yield sock


def told(tmp_path, **more) -> dict[str, str]:
    return {"GFLOW_PROGRESS": str(tmp_path / "p.sock"), "GFLOW_JOB_ID": "42_3", "GFLOW_ATTEMPT": "2"} | more


def heard(ear) -> list[dict]:
    found = []
    try:
        while True:
            found.append(json.loads(ear.recv(4096)))
    except BlockingIOError:
        return found


def test_progress_reports_are_throttled(tmp_path, ear, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    reporter = Reporter(told(tmp_path))
    for step in range(40):
        reporter.note(step, steps=100, samples=step * 8, loss=0.5)
        clock[0] += 0.125
    said = heard(ear)
    assert [one["step"] for one in said] == [0, 8, 16, 24, 32], "one a second"
    assert said[-1] == {
        "job": "42_3", "attempt": 2, "step": 32, "steps": 100, "epoch": 0, "epochs": 0, "loss": 0.5,
        "samples_per_s": 64.0, "left_s": 8.5,
    }  # fmt: skip
    reporter.note(40, steps=100, final=True)
    assert heard(ear)[-1]["step"] == 40


def test_the_last_step_is_sent_at_once(tmp_path, ear):
    reporter = Reporter(told(tmp_path), every_s=60)
    for step in range(1, 41):
        reporter.note(step, steps=40, loss=1 / step)
    assert [(one["step"], one["loss"]) for one in heard(ear)] == [(1, 1.0), (40, 0.025)]
    reporter.note(40, steps=40)
    assert heard(ear) == [], "a repeated last step is not sent again at once"


def test_a_report_that_was_held_back_is_sent_at_the_end(tmp_path, ear):
    reporter = Reporter(told(tmp_path), every_s=60)
    for step in range(1, 40):
        reporter.note(step, loss=1 / step)
    assert [one["step"] for one in heard(ear)] == [1]
    reporter.flush()
    assert [(one["step"], one["loss"]) for one in heard(ear)] == [(39, 1 / 39)]
    reporter.flush()
    assert heard(ear) == [], "nothing is pending any more"


LEAVES = """
import sys
from gflow.train import report
for step in range(1, 40):
    report(step, steps=100, loss=1 / step)
%s
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)])
def test_a_script_that_exits_sends_its_last_report(tmp_path, ear, end, code):
    ended = subprocess.run(
        [sys.executable, "-c", LEAVES % end], env=os.environ | told(tmp_path), stderr=subprocess.DEVNULL
    )
    assert (ended.returncode, heard(ear)[-1]["step"]) == (code, 39)


class GpuLoss:
    """A tensor on a GPU, as far as the reporter looks at it."""

    is_cuda = True

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value

    def detach(self):
        return self

    def to(self, device, non_blocking):
        return self.value


def test_a_loss_on_the_gpu_is_complete_at_the_end(tmp_path, ear):
    reporter = Reporter(told(tmp_path), every_s=0)
    reporter.note(1, loss=GpuLoss(0.5))
    reporter.note(2, loss=GpuLoss(0.25))
    reporter.flush()
    assert [(one["step"], one.get("loss")) for one in heard(ear)] == [(1, None), (2, 0.5), (2, 0.25)]


def test_a_forked_child_does_not_repeat_the_report_of_its_parent(tmp_path, ear):
    reporter = Reporter(told(tmp_path), every_s=60)
    reporter.note(1)
    reporter.note(2)
    child = os.fork()
    if not child:
        reporter.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert [one["step"] for one in heard(ear)] == [1]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), None])
def test_a_loss_that_is_no_number_is_left_out(tmp_path, ear, loss):
    Reporter(told(tmp_path)).note(1, loss=loss)
    assert "loss" not in heard(ear)[0]


def test_names_of_values_that_are_not_finite_are_reported(tmp_path, ear):
    Reporter(told(tmp_path)).note(1, loss=float("nan"), f1=float("inf"), accuracy=0.5)
    said = heard(ear)[0]
    assert (said["nan"], said["metrics"]) == (["loss", "f1"], {"accuracy": 0.5})


def test_any_metric_is_reported_and_keeps_its_value(tmp_path, ear):
    reporter = Reporter(told(tmp_path), every_s=60)
    reporter.note(1, loss=0.5)
    reporter.note(2, loss=0.25, accuracy=0.75, **{"eval/f1": 1})
    reporter.note(3, loss=float("nan"), text="no number", **{"not a name": 1.0})
    reporter.flush()
    last = heard(ear)[-1]
    assert (last["step"], "loss" in last, last["metrics"]) == (3, False, {"accuracy": 0.75, "eval/f1": 1.0})


def test_metrics_are_bounded(tmp_path, ear):
    Reporter(told(tmp_path)).note(1, **{f"{'x' * 40}{index}": 1e-300 for index in range(100)})
    assert len(heard(ear)[0]["metrics"]) == MOST_METRICS


def test_reports_without_listener_are_dropped(tmp_path, ear):
    Reporter({}).note(1)
    Reporter(told(tmp_path, GFLOW_PROGRESS=str(tmp_path / "gone/p.sock"))).note(1)
    reporter = Reporter(told(tmp_path), every_s=0)
    for step in range(5000):  # no reader: what does not fit is lost
        reporter.note(step)
    assert 0 < len(heard(ear)) < 5000
    ear.close()
    reporter.note(6000)


def test_a_call_costs_microseconds(tmp_path, ear):
    """A generous limit: the documented cost is twenty microseconds, a hundred are a mistake."""
    reporter = Reporter(told(tmp_path))
    began = time.thread_time()
    for step in range(10_000):
        reporter.note(step, steps=10_000, loss=0.5, samples=step)
    assert (time.thread_time() - began) / 10_000 < 100e-6
