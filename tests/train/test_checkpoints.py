"""Checkpoints of PyTorch state: what goes in comes out, nothing runs on loading, and trouble is told."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from gflow.errors import UsageError  # noqa: E402
from gflow.ml.train.checkpoint import disk  # noqa: E402
from gflow.ml.train.checkpoint.checkpoint_dir import CheckpointError, Superseded  # noqa: E402
from gflow.train import Checkpointer, Run  # noqa: E402
from tests.train.small import curve, net, train  # noqa: E402


def test_checkpoint_has_the_tensors_of_its_save(tmp_path):
    """The copy is taken at once: training goes on with the tensors while they are written."""
    weights = torch.arange(1000.0)
    keeper = Checkpointer(tmp_path)
    for step in (1, 2, 3):
        weights.fill_(step)
        keeper.save(step, {"weights": weights, "list": [1, (2.5, "three")], "none": None}, {"rank": 0})
        weights.fill_(-1)
    assert keeper.wait().step == 3
    loaded = keeper.load()
    assert loaded.step == 3 and loaded.mine == {"rank": 0}
    assert torch.equal(loaded.state["weights"], torch.full((1000,), 3.0))
    assert loaded.state["list"] == [1, (2.5, "three")]


def test_tied_weights_stay_tied(tmp_path):
    shared = torch.ones(10)
    keeper = Checkpointer(tmp_path, background=False)
    keeper.save(1, {"a": shared, "b": shared})
    state = keeper.load().state
    assert state["a"].data_ptr() == state["b"].data_ptr()


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/gflow-evil",)


def test_unloadable_state_is_refused_at_save(tmp_path):
    keeper = Checkpointer(tmp_path, background=False)
    with pytest.raises(UsageError, match=r"others\.thing: a Evil"):
        keeper.save(1, {"others": {"thing": Evil()}})
    assert keeper.load() is None


def test_loading_runs_no_code(tmp_path):
    keeper = Checkpointer(tmp_path, background=False)
    keeper.save(1, {"fine": 1})
    path = tmp_path / "step-00000001" / "state.pt"
    torch.save(Evil(), path)
    from gflow.ml.train.checkpoint.checkpointer import read

    with pytest.raises(Exception, match=r"[Ww]eights"):
        read(str(path))
    with pytest.raises(CheckpointError, match="is intact"):  # and its checksum is wrong anyway
        keeper.load()


def full(path: str) -> None:
    raise OSError(28, "No space left on device")


def test_full_disk_is_reported_and_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    keeper = Checkpointer(tmp_path)
    keeper.save(1, {"a": torch.ones(3)}, wait=True)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "File", full)
        keeper.save(2, {"a": torch.zeros(3)})
        with pytest.raises(CheckpointError, match="No space left"):
            keeper.wait()
    assert keeper.load().step == 1
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".new")]
    keeper.save(3, {"a": torch.zeros(3)}, wait=True)
    assert keeper.load().step == 3


def test_training_goes_on_when_a_checkpoint_fails(tmp_path, monkeypatch, capsys):
    def fill_up(run) -> None:
        if run.place.step == 5:
            monkeypatch.setattr(disk, "File", full)
        if run.place.step == 9:
            monkeypatch.undo()

    assert train(tmp_path / "c", tmp_path / "said", fill_up) == ""
    assert train(tmp_path / "w", tmp_path / "whole") == ""
    assert curve(tmp_path / "said") == curve(tmp_path / "whole")
    assert "No space left on device; training goes on" in capsys.readouterr().err


def test_a_zombie_ends_when_it_wants_to_save(tmp_path):
    def supersede(run) -> None:
        if run.place.step == 2:
            Checkpointer(tmp_path / "c")

    with pytest.raises(Superseded, match="another run has taken over"):
        train(tmp_path / "c", tmp_path / "said", supersede)


def test_a_run_that_stops_leaves_with_75(tmp_path):
    with pytest.raises(SystemExit) as left, Run(tmp_path, device="cpu") as run:
        model = run.model(net())
        run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
        for inputs in run.batches(run.loader(torch.randn(8, 6), 2)):
            run.backward(model(inputs).sum())
            run.stop.ask("enough")
    assert left.value.code == 75 and run.stopped == "enough"


def test_checkpoint_of_another_program_is_not_loaded(tmp_path):
    train(tmp_path / "c", tmp_path / "said")
    run = Run(tmp_path / "c", device="cpu")
    run.model(net())
    with pytest.raises(CheckpointError, match="has 1 optimizers, 1 schedulers"):
        run.resume()
    run.close()


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"device": "cuda:7"}, "no cuda:7"),
        ({"device": "gpu"}, "there is no device"),
        ({"precision": "bf61"}, "unknown precision"),
        ({"accumulate": 0}, "it must be at least 1"),
    ],
)
def test_invalid_run_options_are_refused(options, refusal):
    with pytest.raises(Exception, match=refusal):
        Run(**options)


def test_calls_in_the_wrong_place(tmp_path):
    run = Run(device="cpu")
    with pytest.raises(UsageError, match="inside a loop"):
        run.backward(torch.ones(1))
    with pytest.raises(UsageError, match="no folder"):
        run.save()
    run.close()
