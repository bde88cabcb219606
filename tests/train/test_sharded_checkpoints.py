"""Sharded checkpoints: resumed on any number of processes, and written while training goes on."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gflow.ml.train.checkpoint.checkpoint_dir import verify  # noqa: E402
from gflow.train import Run  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402

torch.set_num_threads(1)


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trained(folder, *, stop_at: int | None = None, named: bool = False) -> tuple[int, list[torch.Tensor]]:
    """The step at which the run began, and its weights at the end."""
    torch.manual_seed(0)
    run = Run(folder, device="cpu", strategy="fsdp", effective_batch=4, every_steps=1)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    model = run.model(net, *(["student"] if named else []))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), 0.02))
    run.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    began = run.resume()
    data = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
    for batch in run.batches(run.loader(data, 2)):
        run.backward((model(batch) - batch.sum(1, keepdim=True)).square().mean())
        if run.place.step == stop_at:
            run.stop.ask("test")
    found = [whole_tensor(one.detach()).clone() for one in model.parameters()]
    run.close()
    return began, found


def attempt(world: int, folder, out, **options) -> list[int]:
    def act(rank: int) -> None:
        began, weights = trained(folder, **options)
        if rank == 0:
            torch.save([began, weights], out)

    return ranks(world, act)


@pytest.mark.parametrize("named", [False, True])
def test_any_number_of_processes_resumes_a_sharded_run(tmp_path, named):
    """Two ranks, then one process without shards, then two ranks again."""
    assert attempt(1, tmp_path / "whole", tmp_path / "whole.pt", named=named) == [0]
    folder, out = tmp_path / "c", tmp_path / "end.pt"
    assert attempt(2, folder, out, stop_at=1, named=named) == [75, 75]
    assert (folder / "latest/shards").is_dir()
    assert attempt(1, folder, out, stop_at=3, named=named) == [75]
    assert not (folder / "latest/shards").exists()
    assert attempt(2, folder, out, named=named) == [0, 0]
    _, expected = torch.load(tmp_path / "whole.pt")
    began, found = torch.load(out)
    assert 3 <= began < 6
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-7)


def test_shards_are_written_in_the_background_from_a_copy(tmp_path):
    """The files are written after the weights have changed, and hold what they were."""

    def act(rank: int) -> None:
        run = Run(tmp_path / "c", device="cpu", strategy="fsdp")
        model = run.model(nn.Linear(4, 4, bias=False))
        run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
        with torch.no_grad():
            model.weight.fill_(1.0)
        gate = threading.Event()
        real = run._checkpointer._write_shards

        def wait_then_write(*words):
            assert gate.wait(30)
            return real(*words)

        run._checkpointer._write_shards = wait_then_write
        run.save()
        with torch.no_grad():
            model.weight.fill_(2.0)
        gate.set()
        run.close()

    assert ranks(2, act) == [0, 0]
    assert verify(str(tmp_path / "c/latest"))["world"] == 2
    run = Run(tmp_path / "c", device="cpu")
    model = run.model(nn.Linear(4, 4, bias=False))
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    run.resume()
    run.close()
    assert torch.equal(model.weight, torch.ones(4, 4))
