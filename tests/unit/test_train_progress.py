"""Saying how far training is: cheap, never waiting, never failing."""

from __future__ import annotations

import json
import socket
import time

import pytest

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


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), None])
def test_a_loss_that_is_no_number_is_left_out(tmp_path, ear, loss):
    Reporter(told(tmp_path)).note(1, loss=loss)
    assert "loss" not in heard(ear)[0]


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
