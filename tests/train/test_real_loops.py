"""Loops as users write them: several models, averages of weights, loaders of their own, validation."""

from __future__ import annotations

import collections
import copy
import dataclasses
import os
import signal
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset  # noqa: E402

from gflow.errors import GflowError, UsageError  # noqa: E402
from gflow.ml.train.checkpoint.checkpoint_dir import CheckpointError  # noqa: E402
from gflow.ml.train.data.batch_content import move_to_device, samples_in  # noqa: E402
from gflow.ml.train.stop import Stop  # noqa: E402
from gflow.train import Run  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402
from tests.train.small import in_child  # noqa: E402

torch.set_num_threads(1)


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Samples without a length, with noise as augmentations draw it."""

    def __init__(self, count: int = 10, first: float = 1.0) -> None:
        self.count, self.first = count, first

    def __iter__(self):
        for at in range(self.count):
            yield torch.tensor([self.first + at]) + 0.01 * torch.rand(1)


def bits(*modules: nn.Module) -> list[str]:
    return [str(one.tolist()) for module in modules for one in module.state_dict().values()]


def interrupted(make, tmp_path, stops=(1, 3), how="stop"):
    """The result of a loop that is stopped or killed at these steps and resumed, and of one that is not."""
    whole = make(tmp_path / "whole", None)
    for step in stops:
        if how == "KILL":
            assert in_child(lambda step=step: killed(make, tmp_path / "parts", step)) == -signal.SIGKILL
        else:
            with pytest.raises(SystemExit):
                make(tmp_path / "parts", step)
    assert (tmp_path / "parts/latest").exists()
    return make(tmp_path / "parts", None), whole


def killed(make, folder, step) -> None:
    Stop.ask = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    make(folder, step)


# ---------------------------------------------------------------- several models


def gan(folder, stop_at, clip=None):
    """Each optimizer steps on its own loss; that of the generator also reaches the discriminator."""
    torch.manual_seed(0)
    run = Run(folder, device="cpu", accumulate=2, clip=clip, every_steps=1)
    generator = run.model(nn.Linear(2, 3), "generator")
    judge = run.model(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1)), "judge")
    makes = run.optimizer(torch.optim.Adam(generator.parameters(), 0.01))
    judges = run.optimizer(torch.optim.Adam(judge.parameters(), 0.01))
    run.scheduler(torch.optim.lr_scheduler.StepLR(makes, 1, 0.9))
    run.resume()
    for real in run.batches(run.loader(torch.randn(16, 3, generator=torch.Generator().manual_seed(1)), 2)):
        fake = generator(torch.randn(len(real), 2))
        run.backward(judge(fake.detach()).mean() - judge(real).mean(), judges)
        run.backward(-judge(fake).mean(), makes)
        if run.place.step == stop_at:
            run.stop.ask("test")
    run.close()
    return bits(generator, judge)


@pytest.mark.parametrize("how", ["stop", "KILL"])
def test_gan_resumes_with_both_models(tmp_path, how):
    parts, whole = interrupted(gan, tmp_path, (0, 2), how)
    assert parts == whole


def test_loss_of_one_optimizer_leaves_the_gradients_of_others_alone():
    """With plain SGD the result is that of the same steps by hand."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    mine = copy.deepcopy([first, second])
    data = torch.randn(8, 2)
    run = Run(device="cpu", accumulate=2)
    one, two = run.model(first, "first"), run.model(second, "second")
    optimizers = [run.optimizer(torch.optim.SGD(model.parameters(), 0.1)) for model in (one, two)]
    for batch in run.batches(run.loader(data, 2, shuffle=False)):
        run.backward(two(one(batch).detach()).mean(), optimizers[1])
        run.backward(two(one(batch)).square().mean(), optimizers[0])
    run.close()
    for at in (0, 4):
        sums = [[torch.zeros_like(one) for one in model.parameters()] for model in mine]
        for half in (data[at : at + 2], data[at + 2 : at + 4]):
            for number, loss_of in ((1, lambda out: out.mean()), (0, lambda out: out.square().mean())):
                loss = loss_of(mine[1](mine[0](half))) / 2
                found = torch.autograd.grad(loss, list(mine[number].parameters()))
                sums[number] = [a + b for a, b in zip(sums[number], found, strict=True)]
                for one_parameter, gradient in zip(mine[number].parameters(), sums[number], strict=True):
                    if half.data_ptr() != data[at:].data_ptr():  # the second half ends the step
                        one_parameter.data -= 0.1 * gradient
    for ours, theirs in zip((one, two), mine, strict=True):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_second_model_needs_a_name_and_all_are_clipped(tmp_path):
    run = Run(tmp_path, device="cpu", clip=0.5)
    run.model(nn.Linear(1, 1))
    with pytest.raises(UsageError, match="called twice for 'model'"):
        run.model(nn.Linear(1, 1))
    teacher = run.model(nn.Linear(1, 1), "teacher")
    both = [*run._state.model.parameters(), *teacher.parameters()]
    run.optimizer(torch.optim.SGD(both, 0.0))
    for batch in run.batches(run.loader(torch.ones(2, 1), 2)):
        run.backward(100 * (teacher(run._state.model(batch))).mean())
    run.close()
    other = Run(tmp_path, device="cpu")
    other.model(nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match=r"the models \['model', 'teacher'\], and this run has"):
        other.resume()
    other.close()
    norm = torch.stack([one.grad.norm() for one in both if one.grad is not None] or [torch.zeros(1)]).norm()
    assert norm <= 0.51 and run.grad_norm > 1


def test_ddp_with_a_gan_and_a_frozen_teacher(tmp_path):
    def act(rank: int) -> None:
        run = Run(device="cpu")
        generator, judge = run.model(nn.Linear(2, 3), "generator"), run.model(nn.Linear(3, 1), "judge")
        teacher = run.model(nn.Linear(2, 3).requires_grad_(False), "teacher")
        makes = run.optimizer(torch.optim.SGD(generator.parameters(), 0.1))
        judges = run.optimizer(torch.optim.SGD(judge.parameters(), 0.1))
        for batch in run.batches(run.loader(torch.randn(12, 2), 2)):
            run.backward(judge(generator(batch).detach()).mean(), judges)
            run.backward((judge(generator(batch)) - judge(teacher(batch)).detach()).square().mean(), makes)
        found = run.ranks.gather(bits(generator, judge))
        assert found[0] == found[1]
        run.close()

    assert ranks(2, act) == [0, 0]


# ---------------------------------------------------------------- hooks, optimizers, schedulers


def ema(folder, stop_at):
    torch.manual_seed(0)
    run = Run(folder, device="cpu", accumulate=2, every_steps=1)
    model = run.model(nn.Linear(3, 1))
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    average = run.keep("ema", torch.optim.swa_utils.AveragedModel(model))
    run.on_step(lambda: average.update_parameters(model))
    steps: list[int] = []
    run.on_step(lambda: steps.append(run.place.step))
    run.resume()
    for batch in run.batches(run.loader(torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), 2)):
        run.backward(model(batch).square().mean())
        if run.place.step == stop_at:
            run.stop.ask("test")
    run.close()
    assert average.n_averaged == 5 and steps[-1:] in ([5], [])
    return bits(model, average)


@pytest.mark.parametrize("how", ["stop", "KILL"])
def test_average_of_weights_with_accumulation_resumes_equal(tmp_path, how):
    parts, whole = interrupted(ema, tmp_path, how=how)
    assert parts == whole


def test_average_of_weights_resumes_on_other_number_of_ranks(tmp_path):
    """Two ranks, whose average holds a replica, then one, then two."""
    data = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))

    def act(rank: int, folder, stop_at: int | None = None) -> None:
        torch.manual_seed(0)
        run = Run(folder, device="cpu", effective_batch=4)
        model = run.model(nn.Linear(3, 1))
        run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
        average = run.keep("ema", torch.optim.swa_utils.AveragedModel(model))
        run.on_step(lambda: average.update_parameters(model))
        run.resume()
        for batch in run.batches(run.loader(data, 2)):
            run.backward((model(batch) - batch.sum(1, keepdim=True)).square().mean())
            if run.place.step == stop_at:
                run.stop.ask("test")
        run.close()
        torch.save([*model.parameters(), *average.parameters(), average.n_averaged], folder / "end.pt")

    for world, folder, stop_at, code in (
        (1, "w", None, 0),
        (2, "c", 1, 75),
        (1, "c", 3, 75),
        (2, "c", None, 0),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        found = ranks(world, lambda rank, where=tmp_path / folder, at=stop_at: act(rank, where, at))
        assert found == [code] * world
    saved = torch.load(tmp_path / "c/latest/state.pt", weights_only=True)["others"]["ema"]
    assert sorted(saved) == ["module.bias", "module.weight", "n_averaged"]
    for ours, theirs in zip(
        torch.load(tmp_path / "c/end.pt"), torch.load(tmp_path / "w/end.pt"), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-7)


def plateau(folder, stop_at):
    torch.manual_seed(0)
    run = Run(folder, device="cpu")
    model = run.model(nn.Linear(3, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    scheduler = run.scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5))
    run.resume()
    for batch in run.batches(run.loader(torch.ones(8, 3), 2)):
        run.backward(model(batch).square().mean())
        scheduler.step(1.0)  # never better: halved in each step but the first
        if run.place.step == stop_at:
            run.stop.ask("test")
    run.close()
    return [optimizer.param_groups[0]["lr"], *bits(model)]


def test_plateau_scheduler_is_saved_and_left_to_the_script(tmp_path):
    parts, whole = interrupted(plateau, tmp_path, (1,))
    assert parts == whole and whole[0] == 0.1 / 8


def lbfgs(folder, stop_at):
    torch.manual_seed(0)
    run = Run(folder, device="cpu", every_steps=1)
    model = run.model(nn.Linear(3, 1))
    run.optimizer(torch.optim.LBFGS(model.parameters(), max_iter=3))
    run.resume()
    data = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    for batch in run.batches(run.loader(data, 4), 2):
        run.backward(lambda: (model(batch) - batch.sum(1, keepdim=True)).square().mean())
        if run.place.step == stop_at:
            run.stop.ask("test")
    run.close()
    assert (model(data) - data.sum(1, keepdim=True)).abs().max() < 0.1
    return bits(model)


@pytest.mark.parametrize("how", ["stop", "KILL"])
def test_lbfgs_takes_a_function_and_resumes_equal(tmp_path, how):
    parts, whole = interrupted(lbfgs, tmp_path, (2, 4), how)
    assert parts == whole
    run = Run(device="cpu")
    model = run.model(nn.Linear(3, 1))
    run.optimizer(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(UsageError, match="LBFGS computes the loss several times") as refused:
        for batch in run.batches(run.loader(torch.randn(4, 3), 4)):
            run.backward(model(batch).mean())
    assert "lambda" in refused.value.hint
    run.close()


def test_schedule_free_optimizer_is_in_training_mode():
    class Free(torch.optim.SGD):
        mode = ""

        def train(self) -> None:
            self.mode = "train"

        def eval(self) -> None:
            self.mode = "eval"

    run = Run(device="cpu")
    optimizer = run.optimizer(Free(run.model(nn.Linear(1, 1)).parameters(), 0.1))
    for _ in run.batches(run.loader(torch.ones(2, 1), 2)):
        assert optimizer.mode == "train"
    run.close()


def test_compiled_model_resumes_without_compilation_and_the_reverse(tmp_path):
    def go(compiled: bool, folder):
        torch.manual_seed(0)
        run = Run(folder, device="cpu")
        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model = run.model(torch.compile(net, backend="eager") if compiled else net)
        run.optimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        step = run.resume()
        if step == 0:
            for batch in run.batches(run.loader(torch.randn(8, 2), 4)):
                run.backward(model(batch).square().mean())
        run.close()
        return step, bits(net)

    for first in (True, False):
        step, before = go(first, tmp_path / str(first))
        assert (step, go(not first, tmp_path / str(first))) == (0, (2, before))
        saved = torch.load(tmp_path / str(first) / "latest/state.pt", weights_only=True)["model"]
        assert "0.weight" in saved


# ---------------------------------------------------------------- loaders of the script's own


def weights_after(loader, epochs=1, **options) -> list[float]:
    """Values of a weight after each step of SGD with rate 1 whose gradient is minus the mean of the data."""
    run = Run(device="cpu", **options)
    model = run.model(nn.Linear(1, 1, bias=False))
    weight = next(model.parameters())
    nn.init.zeros_(weight)
    run.optimizer(torch.optim.SGD(model.parameters(), 1.0))
    steps: list[float] = []
    run.on_step(lambda: steps.append(round(float(weight.detach()), 1)))
    for batch in run.batches(loader, epochs):
        values = batch[0] if isinstance(batch, (list, tuple)) else batch
        run.backward(-(model(torch.ones_like(values)) * values).mean())
    run.close()
    return [b - a for a, b in zip([0.0, *steps], steps, strict=False)]


def test_iterable_dataset_without_length_and_with_a_remainder():
    """Ten samples in batches of two, three batches in a step: six, then the remaining four."""
    loader = DataLoader(Stream(), batch_size=2)
    assert weights_after(loader, 2, accumulate=3) == pytest.approx([3.5, 8.5, 3.5, 8.5], abs=0.11)
    assert weights_after(loader, effective_batch=4) == pytest.approx([2.5, 6.5, 9.5], abs=0.11)


def test_small_last_batch_counts_by_its_samples():
    """Five samples in batches of four: the mean over the step is that over five samples."""
    data = TensorDataset(torch.tensor([[1.0], [1.0], [1.0], [1.0], [100.0]]))
    assert weights_after(DataLoader(data, 4), accumulate=2) == [pytest.approx(20.8, abs=0.1)]


def stream(folder, stop_at):
    torch.manual_seed(0)
    run = Run(folder, device="cpu", accumulate=3, every_steps=1)
    model = run.model(nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.3), nn.Linear(4, 1)))
    run.optimizer(torch.optim.Adam(model.parameters(), 0.01))
    run.resume()
    for batch in run.batches(DataLoader(Stream(9), batch_size=2), 2):  # steps of three batches and of two
        run.backward(model(batch).square().mean())
        if run.place.step == stop_at:
            run.stop.ask("test")
    run.close()
    assert run.place.step == 4
    return bits(model)


@pytest.mark.parametrize("how", ["stop", "KILL"])
def test_iterable_dataset_resumes_equal(tmp_path, how):
    parts, whole = interrupted(stream, tmp_path, (0, 2), how)
    assert parts == whole


def test_ranks_with_loaders_of_different_length_end_together(tmp_path):
    """Rank 0 has 4 samples (1 to 4), rank 1 has 2 (11 and 12); no step waits, and each mean is right."""

    def act(rank: int) -> None:
        loader = DataLoader(Stream(4 - 2 * rank, 1.0 + 10 * rank), batch_size=1)
        found = weights_after(loader, accumulate=2)
        assert found == pytest.approx([(1 + 2 + 11 + 12) / 4, 3.5], abs=0.11), found

    assert ranks(2, act) == [0, 0]


def test_loader_that_no_sampler_divides_is_named(capfd):
    """accelerate and Fabric replace the sampler of a DataLoader; here each rank would train on all."""
    data = TensorDataset(torch.ones(8, 1))
    loaders = {
        "all": lambda run: DataLoader(data, 2, shuffle=True),
        "one by one": lambda run: DataLoader(data, None),
        "divided": lambda run: DataLoader(data, 2, sampler=DistributedSampler(data)),
        "divided in batches": lambda run: DataLoader(data, batch_sampler=[[run.ranks.rank]] * 4),
        "stream": lambda run: DataLoader(Stream(8), 2),
        "ours": lambda run: run.loader(data, 2),
        "list": lambda run: [(torch.ones(2, 1),)],
    }

    def act(rank: int, name: str) -> None:
        run = Run(device="cpu")
        model = run.model(nn.Linear(1, 1))
        run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
        for _ in run.batches(loaders[name](run)):
            run.backward(model(torch.ones(1, 1)).mean())
        run.close()

    for name in loaders:
        assert ranks(2, lambda rank, name=name: act(rank, name)) == [0, 0]
        said = capfd.readouterr().err.count("each of the 2 processes goes over all samples")
        assert said == (name in ("all", "one by one")), name
    assert ranks(1, lambda rank: act(rank, "all")) == [0]
    assert "goes over all samples" not in capfd.readouterr().err


def test_changed_data_is_noticed(tmp_path, capsys):
    def go(count: int, own: bool = False) -> None:
        run = Run(tmp_path / str(own), device="cpu")
        model = run.model(nn.Linear(1, 1))
        run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
        run.resume()
        data = torch.ones(count, 1)
        for batch in run.batches(DataLoader(data, 2) if own else run.loader(data, 2)):
            run.backward(model(batch).mean())
            if count == 8 and run.place.step == 2:
                run.stop.ask("test")
        run.close()

    for own in (False, True):
        with pytest.raises(SystemExit):
            go(8, own)
        if own:
            with pytest.raises(
                UsageError, match="the loader has 2 batches, and the checkpoint was written after 3"
            ):
                go(4, own)
        else:
            go(6, own)
        assert f"the data had {4 if own else 8} " in capsys.readouterr().err
    run = Run(device="cpu")
    model = run.model(nn.Linear(1, 1))
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    for epochs, count in ((1, 4), (2, 6)):  # one after the other: nothing has changed
        for batch in run.batches(run.loader(torch.ones(count, 1), 2), epochs):
            run.backward(model(batch).mean())
    run.close()
    assert "the data had" not in capsys.readouterr().err


# ---------------------------------------------------------------- batches


@dataclasses.dataclass(frozen=True)
class Frozen:
    inputs: torch.Tensor
    names: list[str]


def test_batches_of_any_kind_are_moved():
    meta, one = torch.device("meta"), torch.zeros(3, 2)
    point = collections.namedtuple("point", "x y")
    mapping = collections.UserDict({"x": one, "more": [{"y": one}], "name": "text"})
    moved = move_to_device(mapping, meta)
    assert type(moved) is collections.UserDict and moved["name"] == "text"
    assert moved["x"].is_meta and moved["more"][0]["y"].is_meta and not mapping["x"].is_meta
    frozen = move_to_device(Frozen(one, ["a"]), meta)
    assert frozen.inputs.is_meta and frozen.names == ["a"]
    assert move_to_device(point(one, (one,)), meta).y[0].is_meta
    assert move_to_device(collections.defaultdict(list, x=one), meta)["x"].is_meta
    packed = nn.utils.rnn.pack_padded_sequence(one[None], [3], batch_first=True)
    assert move_to_device(packed, torch.device("cpu")).data.device.type == "cpu"
    assert [samples_in(batch) for batch in (mapping, Frozen(one, []), point(one, 1), "text")] == [3, 3, 3, 0]
    transformers = pytest.importorskip("transformers")
    encoded = transformers.BatchEncoding({"input_ids": torch.zeros(4, 2)})
    assert move_to_device(encoded, meta)["input_ids"].is_meta and samples_in(encoded) == 4


class Movable(collections.UserDict):  # type: ignore[type-arg]
    """Like BatchFeature of transformers: a mapping that moves itself."""

    def to(self, device: torch.device) -> Movable:
        self.data = {name: one.to(device) for name, one in self.data.items()}
        return self


def test_batch_that_moves_itself_is_converted_with_bf16_pure():
    batch = Movable(pixels=torch.zeros(3, 2), ids=torch.zeros(3, dtype=torch.long))
    moved = move_to_device(batch, torch.device("cpu"), torch.bfloat16)
    assert type(moved) is Movable
    assert (moved["pixels"].dtype, moved["ids"].dtype) == (torch.bfloat16, torch.long)
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(1, 3, 2), [3], batch_first=True)
    assert move_to_device(packed, torch.device("cpu"), torch.bfloat16).data.dtype == torch.bfloat16


def test_samples_of_a_batch_are_not_counted_in_a_single_number():
    """The mean over a step is weighted by samples: a number among the tensors is none."""
    ids = torch.zeros(4, 3)
    assert samples_in({"step": torch.tensor(1), "ids": ids}) == 4
    assert samples_in([torch.tensor(0.5), (torch.tensor(2), ids)]) == 4
    assert samples_in(torch.tensor(1)) == 0


# ---------------------------------------------------------------- validation


def test_validation_in_the_loop(tmp_path):
    """Seven samples on two ranks: each counts once, and training is as without it."""

    def act(rank: int, validates: bool) -> None:
        torch.manual_seed(0)
        run = Run(device="cpu")
        model = run.model(nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1)))
        run.optimizer(torch.optim.SGD(model.parameters(), 0.01))
        held_out = run.loader(torch.arange(7.0)[:, None], 3, shuffle=False)
        assert len(held_out) == 2
        for batch in run.batches(run.loader(torch.ones(8, 1), 2)):
            run.backward(model(batch).mean())
            if validates and run.place.step == 0:
                model.eval()
                with torch.no_grad():
                    found = [run.gather(one[:, 0] + 0 * model(one)[:, 0]) for one in held_out]
                model.train()
                assert len(found) == 2 and torch.cat(found).tolist() == [0, 1, 2, 3, 4, 5, 6]
        (tmp_path / f"{validates}{rank}").write_text(str(bits(model)))
        run.close()

    for validates in (False, True):
        assert ranks(2, lambda rank, validates=validates: act(rank, validates)) == [0, 0]
    assert (tmp_path / "True0").read_text() == (tmp_path / "False0").read_text()


def by_epoch(folder, stop_at):
    torch.manual_seed(0)
    run = Run(folder, device="cpu", keep=1, keep_best=1)
    model = run.model(nn.Linear(3, 1))
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    held_out = run.loader(torch.ones(5, 3), 2)
    calls = []

    @run.on_epoch
    def validate() -> None:
        calls.append((run.place.epoch, run.place.step))
        found = run.gather({"out": (torch.cat([model(x) for x in held_out]),)})
        run.save(score=-found["out"][0].detach().square().mean(), wait=run.place.epoch == 1)
        if stop_at == 10 * run.place.epoch:
            run.stop.ask("test")

    run.resume()
    for batch in run.batches(run.loader(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), 2), 3):
        run.backward(model(batch).square().mean())
        if run.place.step == stop_at:
            run.stop.ask("test")
    run.close()
    return calls, bits(model)


def test_hook_at_the_end_of_an_epoch_is_called_once_for_each(tmp_path, capsys):
    """Also if the run stops at the last step of an epoch, or in the hook itself."""
    calls, whole = by_epoch(tmp_path / "whole", None)
    assert calls == [(0, 3), (1, 6), (2, 9)]
    for stop in (2, 10):  # after the third step; in the hook after the sixth, noticed after the seventh
        with pytest.raises(SystemExit):
            by_epoch(tmp_path / "parts", stop)
    assert sorted(path.name for path in (tmp_path / "parts").glob("step-*"))[-1] == "step-00000007"
    calls, parts = by_epoch(tmp_path / "parts", None)
    assert calls == [(2, 9)] and parts == whole
    best = torch.load(tmp_path / "whole/best/state.pt", weights_only=True)["place"]
    assert best["epoch"] == 3 and (tmp_path / "whole/best").resolve().name.startswith("step-00000009")
    run = Run(device="cpu")
    run.print("accuracy", 0.5)
    run.close()
    assert capsys.readouterr().out.endswith("accuracy 0.5\n")


def test_loop_within_a_loop_is_refused():
    run = Run(device="cpu")
    loader = run.loader(torch.ones(4, 1), 2)
    with pytest.raises(UsageError, match="is running") as refused:
        for _ in run.batches(loader):
            next(run.batches(loader))
    assert "for batch in run.loader" in refused.value.hint
    assert [len(batch) for batch in loader] == [2, 2]
    run.close()


# ---------------------------------------------------------------- mistakes that cost a training


def test_mistakes_are_named(capsys):
    run = Run(device="cpu")
    model, loader = run.model(nn.Linear(1, 1)), None
    loader = run.loader(torch.ones(4, 1), 2)
    with pytest.raises(UsageError, match="this run has no optimizer") as refused:
        for batch in run.batches(loader):
            run.backward(model(batch).mean())
    assert "run.optimizer(" in refused.value.hint
    run.optimizer(torch.optim.SGD([model.bias], 0.1))
    with pytest.raises(UsageError, match="called twice for one batch"):
        for batch in run.batches(loader):
            run.backward(model(batch).mean())
            run.backward(model(batch).mean())
    with pytest.raises(UsageError, match="the optimizer is not registered"):
        for batch in run.batches(loader):
            run.backward(model(batch).mean(), torch.optim.SGD([model.weight], 0.1))
    assert "1 parameters have gradients and belong to no optimizer of this run" in capsys.readouterr().err
    run.close()
    with pytest.raises(UsageError, match="unknown on_nan 'ignore'"):
        Run(device="cpu", on_nan="ignore")


@pytest.mark.parametrize("on_nan", ["warn", "skip", "stop"])
def test_loss_that_is_not_finite(on_nan, capsys):
    run = Run(device="cpu", on_nan=on_nan)
    model = run.model(nn.Linear(1, 1))
    scheduler = run.scheduler(
        torch.optim.lr_scheduler.StepLR(run.optimizer(torch.optim.SGD(model.parameters(), 0.1)), 1)
    )
    steps = 0
    with suppress(GflowError) if on_nan == "stop" else suppress():
        for batch in run.batches(run.loader(torch.ones(8, 1), 2)):
            run.backward(model(batch).mean() * (float("nan") if steps == 1 else 1.0))
            steps += 1
    run.close()
    assert steps == (1 if on_nan == "stop" else 4)
    assert bool(model.weight.isfinite()) is (on_nan != "warn")
    said = capsys.readouterr().err
    if on_nan != "stop":
        assert "the loss is not finite: 1 step " in said
    if on_nan == "skip":
        assert scheduler.last_epoch == 3


def test_one_rank_with_a_loss_that_is_not_finite_makes_all_skip(tmp_path):
    def act(rank: int) -> None:
        run = Run(device="cpu", on_nan="skip")
        model = run.model(nn.Linear(1, 1))
        run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
        for batch in run.batches(run.loader(torch.ones(8, 1), 2)):
            run.backward(model(batch).mean() * (float("nan") if (rank, run.place.step) == (1, 0) else 1.0))
        assert all(bool(one.isfinite().all()) for one in model.parameters())
        run.close()

    assert ranks(2, act) == [0, 0]


# ---------------------------------------------------------------- checkpoints within the loop, weights


def saving(folder, stop_at):
    """Saves in the middle of steps; what ends the run writes no checkpoint."""
    torch.manual_seed(0)
    run = Run(folder, device="cpu", accumulate=2, keep=1, keep_best=2, background=False)
    model = run.model(nn.Linear(3, 1))
    run.optimizer(torch.optim.Adam(model.parameters(), 0.1))
    run.resume()
    scores = [0.1, 0.9, 0.3, 0.7, 0.2]
    for batch in run.batches(run.loader(torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), 2)):
        run.backward(model(batch).square().mean())
        run.save(score=scores[run.place.step])
        if run.place.step == stop_at:
            raise SystemExit(1)
    run.close()
    return bits(model)


def test_save_in_the_loop_is_of_the_end_of_the_step_and_the_best_are_kept(tmp_path):
    parts, whole = interrupted(saving, tmp_path, (2, 4))
    assert parts == whole
    folder = tmp_path / "whole"
    assert sorted(path.name for path in folder.glob("step-*")) == [f"step-0000000{at}" for at in (2, 4, 5)]
    assert (folder / "best").resolve().name == "step-00000002"
    assert (folder / "latest").resolve().name == "step-00000005"


def test_weights_are_exported_whole(tmp_path):
    """Tied weights are written once, and shards are put together."""
    safetensors = pytest.importorskip("safetensors.torch")

    def act(rank: int) -> None:
        run = Run(device="cpu", strategy="fsdp")
        net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        torch.manual_seed(5)
        nn.init.normal_(net[0].weight)
        nn.init.ones_(net[1].weight)
        if run.ranks.world == 1:
            net[1].weight = net[0].weight
        run.model(net)
        run.export(tmp_path / f"{run.ranks.world}.safetensors")
        run.export(tmp_path / f"{run.ranks.world}.pt")
        run.close()

    assert ranks(1, act) == [0] and ranks(2, act) == [0, 0]
    alone, both = (safetensors.load_file(tmp_path / f"{world}.safetensors") for world in (1, 2))
    assert list(alone) == ["0.weight"] and sorted(both) == ["0.weight", "1.weight"]
    assert torch.equal(alone["0.weight"], both["0.weight"]) and bool((both["1.weight"] == 1).all())
    assert torch.load(tmp_path / "2.pt", weights_only=True)["0.weight"].shape == (4, 4)
    run = Run(device="cpu")
    with pytest.raises(UsageError, match="unknown model 'model'"):
        run.export(tmp_path / "none.pt")
    run.close()


def test_pure_bf16_has_everything_in_bf16():
    run = Run(device="cpu", precision="bf16-pure")
    model = run.model(nn.Linear(2, 1))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters()))
    for batch, number in run.batches(run.loader(TensorDataset(torch.ones(4, 2), torch.arange(4)), 2)):
        assert (batch.dtype, number.dtype) == (torch.bfloat16, torch.int64)
        with run.autocast():
            loss = model(batch).mean()
        assert loss.dtype == torch.bfloat16
        run.backward(loss)
    run.close()
    moments = [one["exp_avg"].dtype for one in optimizer.state.values()]
    assert model.weight.dtype == torch.bfloat16 and set(moments) == {torch.bfloat16}
