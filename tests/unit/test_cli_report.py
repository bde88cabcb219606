"""`gflow report`: progress and metrics from a shell script."""

from __future__ import annotations

import json
import socket

import pytest

from gflow.cli.tools import report
from gflow.errors import UsageError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["step=40", "steps=100", "loss=0.31"],
            {"step": 40, "steps": 100, "loss": 0.31, "metrics": {}, "only": ["step", "steps", "loss"]},
        ),
        (["eval/f1=1e-3"], {"metrics": {"eval/f1": 0.001}, "only": []}),
        (
            ["loss=nan", "f1=inf", "step=3"],
            {"step": 3, "metrics": {}, "only": ["step"], "nan": ["loss", "f1"]},
        ),
    ],
)
def test_what_is_sent(tmp_path, monkeypatch, words, said):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.bind(str(tmp_path / "p.sock"))
        for name, value in {"PROGRESS": tmp_path / "p.sock", "JOB_ID": "7", "ATTEMPT": "1"}.items():
            monkeypatch.setenv(f"GFLOW_{name}", str(value))
        assert report.run(words) == 0
        assert json.loads(sock.recv(4096)) == {"job": "7", "attempt": 1} | said


@pytest.mark.parametrize(
    "word", ["loss", "loss=", "loss=low", "step=1.5", "step=nan", "step=-1", "a b=1", "=1"]
)
def test_bad_values_are_refused(monkeypatch, word):
    with pytest.raises(UsageError) as caught:
        report.run([word])
    assert caught.value.hint


def test_nothing_happens_outside_of_a_job(monkeypatch):
    monkeypatch.delenv("GFLOW_PROGRESS", raising=False)
    assert report.run(["loss=1"]) == 0
