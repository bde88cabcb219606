"""The gradient of a step equals that of one large batch, for any way to compute it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from gflow.train import Run  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402

torch.set_num_threads(1)
SAMPLES, EFFECTIVE = 22, 8  # the last step has six


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(8, 1)
        self.double()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    inputs, targets = (torch.randn(SAMPLES, width, generator=generator).double() for width in (8, 1))
    return TensorDataset(inputs, targets)


def trained(batch: int, **options) -> list[torch.Tensor]:
    """The parameters after an epoch of plain SGD, whose steps are the gradients themselves."""
    run = Run(device="cpu", effective_batch=EFFECTIVE, **options)
    model = run.model(Deep())
    run.optimizer(torch.optim.SGD(model.parameters(), 0.5))
    for inputs, targets in run.batches(run.loader(data(), batch)):
        run.backward(nn.functional.mse_loss(model(inputs), targets))
    found = [
        (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone()
        for one in model.parameters()
    ]
    assert run.place.step == 3
    run.close()
    return found


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    return trained(EFFECTIVE)


def same(found, expected) -> bool:
    return all(
        torch.allclose(one, other, rtol=0, atol=1e-7) for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
def test_accumulation_with_its_remainder(expected, batch):
    assert same(trained(batch), expected)


def test_clipping_is_of_the_whole_gradient():
    assert same(trained(3, clip=0.1), trained(EFFECTIVE, clip=0.1))
    assert not same(trained(3, clip=0.1), trained(3))


def test_recomputing_changes_nothing(expected):
    found = trained(EFFECTIVE, gradient_checkpointing=True)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("world", "strategy"), [(2, "ddp"), (4, "ddp"), (3, "ddp"), (2, "fsdp"), (4, "fsdp")]
)
@pytest.mark.parametrize("batch", [1, 2])
def test_many_ranks(tmp_path: Path, expected, world, strategy, batch):
    def act(rank: int) -> None:
        found = trained(batch, strategy=strategy)
        torch.save(found, tmp_path / f"{rank}.pt")
        sys.exit(0 if same(found, expected) else 1)

    assert ranks(world, act) == [0] * world
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, world - 1))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), "all ranks have the same model"


def test_other_number_of_ranks_continues_with_the_same_steps(tmp_path):
    """Begun by one process, finished by two: the effective batch stays."""

    def go(rank: int, stop_at: int | None = None) -> None:
        run = Run(tmp_path / "c", device="cpu", effective_batch=EFFECTIVE)
        model = run.model(Deep())
        run.optimizer(torch.optim.SGD(model.parameters(), 0.5))
        run.resume()
        for inputs, targets in run.batches(run.loader(data(), 2), 2):
            run.backward(nn.functional.mse_loss(model(inputs), targets))
            if run.place.step == stop_at:
                run.stop.ask("test")
        torch.save([one.detach() for one in model.parameters()], tmp_path / f"end{rank}.pt")
        run.close()

    go(9)
    whole = torch.load(tmp_path / "end9.pt")
    for entry in (tmp_path / "c").glob("step-*"):
        import shutil

        shutil.rmtree(entry)
    with pytest.raises(SystemExit):
        go(9, stop_at=1)
    assert ranks(2, go) == [0, 0]
    assert same(torch.load(tmp_path / "end0.pt"), whole)


def test_a_weight_that_is_wrong_shows(expected, monkeypatch):
    """A test of the test."""
    from gflow.ml.train.data import data_loader, data_sharding

    real = data_sharding.shares
    monkeypatch.setattr(
        data_loader, "shares", lambda *words: (one._replace(weight=one.weight * 1.5) for one in real(*words))
    )
    assert not same(trained(2), expected)
