"""A run that is stopped or killed anywhere and resumed has the losses of an uninterrupted run, bit by bit."""

from __future__ import annotations

import os
import random
import signal

import pytest

torch = pytest.importorskip("torch")

from gflow.cloud import Aws, watch  # noqa: E402
from gflow.ml.train.stop import boot_s  # noqa: E402
from tests.metadata import Server  # noqa: E402
from tests.train.small import ACCUMULATE, STEPS, curve, in_child, train  # noqa: E402

TRIALS = 55


def at(step: int, act) -> object:
    def interrupt(run) -> None:
        if run.place.step == step:
            act(run)

    return interrupt


def term(run) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill(run) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_file(run) -> None:
    open(os.environ["GFLOW_STOP_FILE"], "w").close()


def notice(run) -> None:
    """The cloud sends a notice, and its watcher makes the stop file."""
    server = Server()
    server.take()
    heard = watch([Aws(server.base)], lambda seconds: False, 0.01)
    server.close()
    assert heard is not None and 100 < heard.left_s <= 121
    stop_file(run)


def time_limit(run) -> None:
    run.stop._clock = lambda: float(os.environ["GFLOW_DEADLINE"]) - 1


KINDS = {"TERM": term, "stop file": stop_file, "notice": notice, "time limit": time_limit, "KILL": kill}
# What a run calls it.
REASONS = {"notice": "stop file"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    assert train(folder / "c", folder / "said") == ""
    return curve(folder / "said")


@pytest.fixture(autouse=True)
def job(tmp_path, monkeypatch):
    """As in a job of gflow that is requeued."""
    monkeypatch.setenv("GFLOW_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setenv("GFLOW_DEADLINE", str(boot_s() + 1e6))
    monkeypatch.setenv("GFLOW_REQUEUE", "1")


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_anywhere(tmp_path, whole, kind):
    dice = random.Random(kind)
    for trial in range(TRIALS // len(KINDS)):
        folder, said = tmp_path / f"c{trial}", tmp_path / f"said{trial}"
        interrupts = sorted({dice.randrange(STEPS) for _ in range(dice.randint(1, 3))})
        for step in interrupts:
            if kind == "KILL":
                assert in_child(lambda: train(folder, said, at(step, KINDS[kind]))) == -signal.SIGKILL
            else:
                stopped = train(folder, said, at(step, KINDS[kind]))
                assert stopped == ("" if step == STEPS else REASONS.get(kind, kind))
                assert (folder / "latest").resolve().name.startswith(f"step-{step + 1:08d}")
            (tmp_path / "stop").unlink(missing_ok=True)
        assert train(folder, said) == ""
        assert curve(said) == whole, f"after {interrupts}"


def test_a_loader_of_the_scripts_own(tmp_path):
    assert train(tmp_path / "w", tmp_path / "whole", own_loader=True) == ""
    for step in (0, 3, 8):
        folder, said = tmp_path / f"c{step}", tmp_path / f"said{step}"
        assert train(folder, said, at(step, term), own_loader=True) == "TERM"
        assert train(folder, said, own_loader=True) == ""
        assert curve(said) == curve(tmp_path / "whole")


def test_with_a_scaler(tmp_path):
    """fp16: the scale and what it waits for are part of the state."""
    assert train(tmp_path / "w", tmp_path / "whole", precision="fp16") == ""
    assert train(tmp_path / "c", tmp_path / "said", at(6, term), precision="fp16") == "TERM"
    assert train(tmp_path / "c", tmp_path / "said", precision="fp16") == ""
    assert curve(tmp_path / "said") == curve(tmp_path / "whole")


def test_a_run_that_came_to_its_end_does_nothing_more(tmp_path, whole):
    assert train(tmp_path / "c", tmp_path / "said") == ""
    before = (tmp_path / "said").read_text()
    assert train(tmp_path / "c", tmp_path / "said") == ""
    assert (tmp_path / "said").read_text() == before
    assert len(whole) == STEPS * ACCUMULATE - 3  # the last step of an epoch has a single batch


def test_the_comparison_notices_a_forgotten_generator(tmp_path, whole, monkeypatch):
    """A test of the test: without the state of random numbers, the curves differ."""
    monkeypatch.setattr("gflow.ml.train.checkpoint.rng.restore", lambda *_: None)
    assert train(tmp_path / "c", tmp_path / "said", at(5, term)) == "TERM"
    assert train(tmp_path / "c", tmp_path / "said") == ""
    assert curve(tmp_path / "said") != whole
