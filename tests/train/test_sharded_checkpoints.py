"""Sharded checkpoints: resumed on any number of processes, and written while training goes on."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule  # noqa: E402

from gflow import fit  # noqa: E402
from gflow.errors import Refused, UsageError  # noqa: E402
from gflow.ml.fit.models.user_model import build  # noqa: E402
from gflow.ml.train.checkpoint.checkpoint_dir import verify  # noqa: E402
from gflow.train import Run  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402

torch.set_num_threads(1)


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Average:
    """Averages of weights that are sharded."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: one.detach().clone() for name, one in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, one in model.named_parameters():
            self.weights[name].lerp_(one.detach(), 0.1)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.weights

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name, one in state.items():
            self.weights[name].copy_(one)


def trained(
    folder, *, stop_at: int | None = None, named: bool = False, offload: bool = False, averaged: bool = False
) -> tuple[int, list[torch.Tensor]]:
    """The step at which the run began, and its weights at the end."""
    torch.manual_seed(0)
    run = Run(
        folder, device="cpu", strategy="fsdp", offload=offload, effective_batch=4, every_steps=1, clip=1.0
    )
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    model = run.model(net, *(["student"] if named else []))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), 0.02))
    run.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    if averaged:
        average = run.keep("average", Average(model))
        run.on_step(lambda: average.update(model))
    began = run.resume()
    if run.ranks.world > 1:
        shards = [one for one in model.modules() if isinstance(one, FSDPModule)]
        policies = {type(one._get_fsdp_state()._fsdp_param_group.offload_policy) for one in shards}
        assert (policies == {CPUOffloadPolicy}) == offload
    data = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
    for batch in run.batches(run.loader(data, 2)):
        run.backward((model(batch) - batch.sum(1, keepdim=True)).square().mean())
        if run.place.step == stop_at:
            run.stop.ask("test")
    found = [whole_tensor(one.detach()).clone() for one in model.parameters()]
    if averaged:
        found += [whole_tensor(one).clone() for one in average.weights.values()]
    run.close()
    return began, found


def attempt(world: int, folder, out, **options) -> list[int]:
    def act(rank: int) -> None:
        began, weights = trained(folder, **options)
        if rank == 0:
            torch.save([began, weights], out)

    return ranks(world, act)


@pytest.mark.parametrize("options", [{}, {"named": True}, {"offload": True}, {"averaged": True}])
def test_any_number_of_processes_resumes_a_sharded_run(tmp_path, options):
    """Two ranks, then one process without shards, then two ranks again."""
    assert attempt(1, tmp_path / "whole", tmp_path / "whole.pt", **options) == [0]
    folder, out = tmp_path / "c", tmp_path / "end.pt"
    assert attempt(2, folder, out, stop_at=1, **options) == [75, 75]
    assert (folder / "latest/shards").is_dir()
    assert attempt(1, folder, out, stop_at=3, **options) == [75]
    assert not (folder / "latest/shards").exists()
    assert attempt(2, folder, out, **options) == [0, 0]
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs FSDP"),
        ({"strategy": "ddp"}, "needs FSDP"),
        ({"strategy": "fsdp", "precision": "fp16"}, "does not go with fp16"),
    ],
)
def test_offloading_that_would_not_happen_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Run(device="cpu", offload=True, **options)


class Block(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(3, 3), inner
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x if self.inner is None else self.inner(x))


class Net(nn.Module):
    """Layers that are not in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Block(), Block(Block()), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(self.second(self.first(x)))


def test_layers_named_by_their_class_are_sharded_and_recomputed():
    def act(rank: int) -> None:
        run = Run(device="cpu", strategy="fsdp", gradient_checkpointing=True)
        model = run.model(Net(), layers=Block)
        sharded = [name for name, one in model.named_modules() if isinstance(one, FSDPModule)]
        assert sharded == ["", "first", "second"]
        run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
        for batch in run.batches(run.loader(torch.ones(4, 3), 2)):
            run.backward(model(batch).square().mean())
        assert [model.first.calls, model.second.calls, model.second.inner.calls] == [2, 2, 2]
        run.close()

    assert ranks(2, act) == [0, 0]


def test_layers_that_the_model_does_not_have_are_refused():
    run = Run(device="cpu")
    with pytest.raises(UsageError, match="the model has no LSTM or GRU"):
        run.model(Net(), layers=(nn.LSTM, nn.GRU))
    with pytest.raises(UsageError, match="no list of layers") as caught:
        Run(device="cpu", gradient_checkpointing=True).model(Net())
    assert "layers=" in caught.value.hint
    run.close()


def test_model_that_is_sharded_already_is_refused_with_what_to_do():
    """The advice to build it inside the callable was wrong: a model that is sharded there is refused too."""

    def shard() -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        return fully_shard(nn.Linear(4, 1))

    def act(rank: int) -> None:
        run = Run(device="cpu", strategy="fsdp")
        example = torch.zeros(2, 4), torch.zeros(2, 1)
        for made in (run.model(nn.Sequential(nn.Linear(4, 1))), shard()):
            refusals = [lambda made=made: fit.estimate(model=made, example=example)]
            refusals += [lambda made=made: build(lambda: (made, example), 2, None, has_values=True)]
            refusals += [lambda: build(lambda: (shard(), example), 2, None, has_values=True)]
            for refusal in refusals:
                with pytest.raises(Refused, match="is sharded already") as caught:
                    refusal()
                assert "before fully_shard" in caught.value.hint and "ready=shard" in caught.value.hint
        run.close()

    assert ranks(2, act) == [0, 0]
