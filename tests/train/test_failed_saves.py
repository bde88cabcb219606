"""Saves that fail, folders in use and damaged checkpoints: nothing that can be saved is lost."""

from __future__ import annotations

import os
import re
import resource
import signal
import time

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint import FileSystemWriter  # noqa: E402

from gflow.errors import UsageError  # noqa: E402
from gflow.ml.train.checkpoint import checkpoint_dir, checkpointer, disk  # noqa: E402
from gflow.ml.train.checkpoint.checkpoint_dir import CheckpointError, verify  # noqa: E402
from gflow.ml.train.ranks import Ranks  # noqa: E402
from gflow.train import Checkpointer, Run  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402
from tests.train.small import STEPS, net, train  # noqa: E402


def full(path: str) -> None:
    raise OSError(28, "No space left on device")


def disk_full_at(monkeypatch, first: int, last: int):
    """The disk is full from the save of step `first` until after step `last`."""

    def act(run) -> None:
        if run.place.step == first - 1:
            monkeypatch.setattr(disk, "File", full)
        if run.place.step == last:
            run._checkpointer.join()
            monkeypatch.undo()

    return act


def test_final_save_happens_after_a_background_save_failed(tmp_path, monkeypatch, capsys):
    fill_up = disk_full_at(monkeypatch, 12, 12)
    assert train(tmp_path / "c", tmp_path / "said", fill_up, every_steps=12) == ""
    assert verify(str(tmp_path / "c/latest"))["step"] == STEPS
    assert "no checkpoint of step 12: rank 0: " in capsys.readouterr().err

    def fill_and_stop(run) -> None:
        disk_full_at(monkeypatch, 4, 4)(run)
        if run.place.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    assert train(tmp_path / "t", tmp_path / "term", fill_and_stop) == "TERM"
    assert verify(str(tmp_path / "t/latest"))["step"] == 6


def test_periodic_save_happens_after_one_failed(tmp_path, monkeypatch):
    seen = set()

    def look(run) -> None:
        disk_full_at(monkeypatch, 2, 2)(run)
        if run.place.step == 5:
            run._checkpointer.join()
            seen.update(saved.step for saved in run._checkpointer.directory.saved())

    train(tmp_path / "c", tmp_path / "said", look, every_steps=2)
    assert seen == {4}


def test_last_step_is_saved_again_if_its_background_save_failed(tmp_path, monkeypatch):
    run = Run(tmp_path, device="cpu")
    model = run.model(net())
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    monkeypatch.setattr(disk, "File", full)
    run.save()
    run._checkpointer.join()
    monkeypatch.undo()
    run.save(wait=True)
    run.close()
    assert verify(str(tmp_path / "latest"))["step"] == 0


def test_full_disk_is_named_also_when_pytorch_replaces_the_error(tmp_path, monkeypatch):
    written = []

    def write(fd: int, data: bytes) -> int:
        written.append(len(data))
        if sum(written) > 2000:
            raise OSError(28, "No space left on device")
        return len(data)

    keeper = Checkpointer(tmp_path, background=False)
    monkeypatch.setattr(disk.os, "write", write)
    with pytest.raises(CheckpointError, match=r"step 1: rank 0: .*No space left on device"):
        keeper.save(1, {"weights": torch.zeros(100_000)})


def test_run_without_resume_is_refused_in_a_folder_with_checkpoints(tmp_path):
    train(tmp_path / "c", tmp_path / "said")
    run = Run(tmp_path / "c", device="cpu")
    model = run.model(net())
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(UsageError, match=f"has a checkpoint of step {STEPS}") as refused:
        next(iter(run.batches(run.loader(torch.randn(4, 6), 2))))
    assert "run.resume()" in refused.value.hint
    with pytest.raises(UsageError, match="does not resume"):
        run.save()
    run.close()


@pytest.mark.parametrize("keep", [1, 3])
def test_training_does_not_begin_again_if_all_checkpoints_are_damaged(tmp_path, keep):
    assert train(tmp_path / "c", tmp_path / "said", keep=keep) == ""
    for path in (tmp_path / "c").glob("step-*"):
        (path / "state.pt").write_bytes(b"damaged")
    before = sorted(os.listdir(tmp_path / "c"))
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is intact"):
        train(tmp_path / "c", tmp_path / "said", keep=keep)
    assert sorted(os.listdir(tmp_path / "c")) == before


def test_state_that_cannot_be_saved_is_refused_when_it_is_registered():
    numpy = pytest.importorskip("numpy")

    class Statistics:
        def __init__(self, value) -> None:
            self.value = value

        def state_dict(self):
            return {"mean": [self.value]}

        def load_state_dict(self, state) -> None:
            self.value = state["mean"][0]

    run = Run(device="cpu")
    with pytest.raises(UsageError, match=r"cannot hold stats\.mean\.0: a ndarray"):
        run.keep("stats", Statistics(numpy.zeros(3)))
    with pytest.raises(UsageError, match="a list has no state_dict"):
        run.keep("history", [])
    run.keep("fine", Statistics(numpy.float64(0.5)))
    run.close()


def test_state_that_became_unsafe_costs_one_save_and_not_the_run(tmp_path, capsys):
    class Odd:
        value = None

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state) -> None:
            pass

    keeper = Odd()
    run = Run(tmp_path, device="cpu", every_steps=1)
    model = run.model(net())
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    run.keep("odd", keeper)
    for at, inputs in enumerate(run.batches(run.loader(torch.randn(8, 6), 2))):
        run.backward(model(inputs).sum())
        keeper.value = {1} if at == 1 else None
    run.close()
    assert "cannot hold others.odd.value: a set could not be loaded safely; training goes on" in (
        capsys.readouterr().err.replace("state.pt.", "")
    )
    assert verify(str(tmp_path / "latest"))["step"] == 4


def test_second_live_run_in_a_folder_is_refused_and_the_first_goes_on(tmp_path):
    """One that has closed the folder, or has died, does not hold it."""
    first = Checkpointer(tmp_path)

    def refused(rank: int) -> None:
        message = f"another run, process {os.getppid()}, is writing checkpoints to {tmp_path}"
        with pytest.raises(CheckpointError, match=re.escape(message)):
            Checkpointer(tmp_path)

    assert ranks(1, refused) == [0]
    first.save(1, {"a": 1}, wait=True)
    first.close()
    assert ranks(1, lambda rank: Checkpointer(tmp_path)) == [0]
    Checkpointer(tmp_path).close()  # its last owner has ended without closing it


def test_ranks_verify_together_and_none_runs_into_the_timeout(tmp_path, monkeypatch):
    """Verification takes longer than the timeout: a rank that is done still waits for the others."""
    (tmp_path / "c").mkdir()
    real = checkpoint_dir._checksum_in_chunks

    def slow(path: str):
        with open(tmp_path / f"read-by-{os.environ['RANK']}", "a") as file:
            file.write(os.path.basename(path) + "\n")
        if path.endswith("rank-1.pt"):
            for _ in range(30):
                time.sleep(0.1)
                yield
        return (yield from real(path))

    monkeypatch.setattr(checkpoint_dir, "_checksum_in_chunks", slow)

    def act(rank: int) -> None:
        keeper = Checkpointer(tmp_path / "c", ranks=Ranks(torch.device("cpu"), timeout_s=1))
        keeper.save(3, {"a": 1}, {"rank": rank}, wait=True)
        loaded = keeper.load()
        assert loaded.step == 3 and loaded.mine == {"rank": rank}
        keeper._ranks.close()

    assert ranks(2, act) == [0, 0]
    reads = [set((tmp_path / f"read-by-{rank}").read_text().split()) for rank in (0, 1)]
    assert all(reads) and not reads[0] & reads[1]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_save_that_fails_on_one_rank_loses_nothing_when_the_run_is_stopped(tmp_path, capfd, strategy):
    """The disk of rank 1 is full for the save of step 2; later it gets TERM."""

    def break_disk(is_full: bool, files=disk.File, shards=FileSystemWriter.write_data) -> None:
        disk.File = full if is_full else files
        FileSystemWriter.write_data = (lambda *_: full("")) if is_full else shards

    def act(rank: int) -> None:
        run = Run(tmp_path / "c", device="cpu", strategy=strategy, every_steps=2)
        model = run.model(net())
        run.optimizer(torch.optim.SGD(model.parameters(), 0.01))
        for inputs in run.batches(run.loader(torch.randn(60, 6), 2)):
            run.backward(model(inputs).square().mean())
            if run.place.step in (1, 2) and rank == 1:
                run._checkpointer.join()
                break_disk(run.place.step == 1)
            if run.place.step == 4 and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
        run.close()

    assert ranks(2, act) == [75, 75]
    assert re.search(r"no checkpoint of step 2: .*rank 1: .*No space left on device", capfd.readouterr().err)
    assert verify(str(tmp_path / "c/latest"))["step"] in (5, 6)
    assert not [path.name for path in (tmp_path / "c").iterdir() if "00000002" in path.name]


@pytest.mark.parametrize(("strategy", "limited"), [("ddp", 0), ("fsdp", 1)])
def test_error_of_one_disk_is_named_on_all_ranks(tmp_path, strategy, limited):
    """The kernel refuses to make the files of one of three ranks larger, as on a full disk."""

    def act(rank: int) -> None:
        run = Run(tmp_path / "c", device="cpu", strategy=strategy)
        model = run.model(torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300)))
        run.optimizer(torch.optim.AdamW(model.parameters()))
        if rank == limited:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(CheckpointError) as refused:
            for inputs in run.batches(run.loader(torch.randn(6, 300), 2)):
                run.backward(model(inputs).square().mean())
        expected = f"no checkpoint of step 1: rank {limited}: [Errno 27] File too large"
        assert refused.value.message == expected
        os._exit(0)

    assert ranks(3, act) == [0, 0, 0]


def test_full_disk_when_a_checkpoint_is_committed_is_named_on_all_ranks(tmp_path, monkeypatch):
    def act(rank: int) -> None:
        keeper = Checkpointer(tmp_path / "c", background=False)
        monkeypatch.setattr(keeper.directory, "commit", lambda *_: full(""))
        with pytest.raises(CheckpointError) as refused:
            keeper.save(1, {"a": 1})
        assert refused.value.message == "no checkpoint of step 1: [Errno 28] No space left on device"
        keeper.close()

    assert ranks(2, act) == [0, 0]


def test_unforeseen_error_of_one_rank_ends_the_save_on_all(tmp_path, monkeypatch):
    """A rank that fails while it writes does not leave the others waiting for it."""

    def fail(path: str, content: object) -> None:
        raise TypeError("cannot pickle")

    def act(rank: int) -> None:
        keeper = Checkpointer(tmp_path / "c")
        if rank == 1:
            monkeypatch.setattr(checkpointer, "write", fail)
        keeper.save(1, {"a": 1}, {"rank": rank})
        with pytest.raises(CheckpointError, match="no checkpoint of step 1: rank 1: cannot pickle"):
            keeper.wait()
        keeper.close()

    assert ranks(2, act, timeout_s=30) == [0, 0]


def test_unforeseen_error_of_a_commit_ends_the_save_on_all(tmp_path):
    """The first rank cannot write the manifest; the others wait for its word."""

    def act(rank: int) -> None:
        keeper = Checkpointer(tmp_path / "c")
        keeper.save(1, {"a": 1}, about={"score": {1, 2}})
        with pytest.raises(CheckpointError, match=r"no checkpoint of step 1: .*set is not JSON"):
            keeper.wait()
        keeper.close()

    assert ranks(2, act, timeout_s=30) == [0, 0]
