"""Loops as users write them, interrupted at random moments until they end: equal to one that was not."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from gflow.train import Run  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402
from tests.train.small import curve  # noqa: E402

torch.set_num_threads(1)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
ATTEMPTS = 8
pytestmark = pytest.mark.slow


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Samples without a length, with noise as augmentations draw it."""

    def __iter__(self):
        for at in range(41):
            yield torch.full((3,), at / 41) + 0.1 * torch.randn(3)


def gan(folder: Path, said: Path, source: str) -> list[str]:
    """Two models, each with an optimizer, an average of one; steps of three batches, and a remainder."""
    torch.manual_seed(0)
    run = Run(folder, device="cpu", accumulate=3, clip=1.0, every_steps=2)
    maker = run.model(nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 3)), "maker")
    judge = run.model(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), "judge")
    makes = run.optimizer(torch.optim.Adam(maker.parameters(), 0.01))
    judges = run.optimizer(torch.optim.SGD(judge.parameters(), 0.01, momentum=0.9))
    run.scheduler(torch.optim.lr_scheduler.StepLR(makes, 5, 0.9))
    average = run.keep("ema", torch.optim.swa_utils.AveragedModel(maker))
    run.on_step(lambda: average.update_parameters(maker))
    data = torch.randn(41, 3, generator=torch.Generator().manual_seed(1))
    loader = {
        "run.loader": lambda: run.loader(data, 4),
        "DataLoader": lambda: DataLoader(data, 4, shuffle=True),
        "IterableDataset": lambda: DataLoader(Stream(), 4),
    }[source]()
    run.resume()
    for real in run.batches(loader, 4):
        fake = maker(torch.randn(len(real), 2))
        run.backward(judge(fake.detach()).mean() - judge(real).mean(), judges)
        loss = (1 - judge(fake)).square().mean()
        run.backward(loss, makes)
        with said.open("a") as file:
            file.write(f"{run.place.step}.{run.place.batches} {loss.item().hex()}\n")
        time.sleep(0.005)
    run.close()
    assert run.place.step == 16 and average.n_averaged == 16
    return [str(one.tolist()) for part in (maker, judge, average) for one in part.state_dict().values()]


def attempt(act: Callable[[], list[str]], out: Path) -> int:
    """Start in a process of its own, which writes its result. Return the process."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        out.write_text("\n".join(act()))
        code = 0
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        os._exit(code)


def interrupt(pid: int, said: Path, chance: random.Random) -> None:
    """Send a random signal at a random moment after the next batch, if there is one."""
    before = said.stat().st_size if said.exists() else 0
    end = time.monotonic() + 60
    while not (said.exists() and said.stat().st_size > before) and time.monotonic() < end:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.002)
    time.sleep(chance.random() * 0.1)
    os.kill(pid, chance.choice(SIGNALS))


@pytest.mark.parametrize("source", ["run.loader", "DataLoader", "IterableDataset"])
@pytest.mark.parametrize("seed", range(3))
def test_interrupted_gan_with_average_and_remainder_is_equal(tmp_path, source, seed):
    chance = random.Random(seed)
    results = []
    for name, count in (("whole", 0), ("parts", ATTEMPTS)):
        said, out = tmp_path / f"{name}.losses", tmp_path / f"{name}.end"
        ends = []
        while 0 not in ends:
            pid = attempt(lambda name=name, said=said: gan(tmp_path / name, said, source), out)
            if len(ends) < count:
                interrupt(pid, said, chance)
            ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            assert ends[-1] in (0, 75, -signal.SIGKILL), ends
        results.append((curve(said), out.read_text()))
    assert len(ends) > 2, "too few interruptions to show anything"
    assert results[0] == results[1]


def sharded(folder: Path, out: Path, end_at: tuple[int, bool] | None) -> None:
    """FSDP with accumulation; stops, or is killed, after a step. In fp64: other sums round differently."""
    torch.manual_seed(0)
    run = Run(folder, device="cpu", strategy="fsdp", effective_batch=12, every_steps=1, clip=1.0)
    model = run.model(nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).double())
    run.optimizer(torch.optim.AdamW(model.parameters(), 0.02))
    run.resume()
    data = torch.randn(80, 3, generator=torch.Generator().manual_seed(1)).double()
    for batch in run.batches(run.loader(data, 2), 2):  # six steps of twelve, and one of eight
        run.backward((model(batch) - batch.sum(1, keepdim=True)).square().mean())
        if end_at is not None and run.place.step == end_at[0]:
            if end_at[1]:
                os.kill(os.getpid(), signal.SIGKILL)
            run.stop.ask("test")
    weights = [getattr(one, "full_tensor", lambda one=one: one)().detach() for one in model.parameters()]
    if run.ranks.is_first:
        torch.save([run.place.step, weights], out)
    run.close()


@pytest.mark.parametrize("seed", range(3))
def test_interrupted_shards_on_changing_numbers_of_processes_are_equal(tmp_path, seed):
    chance = random.Random(seed)
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    assert ranks(1, lambda _: sharded(tmp_path / "whole", whole, None)) == [0]
    for world, step in zip((2, 1, 3, 1, 2), (1, 3, 6, 8, 10), strict=True):
        end = (step + chance.randrange(2), chance.random() < 0.5)
        found = ranks(world, lambda _, end=end: sharded(tmp_path / "parts", parts, end))
        assert set(found) <= {75, -signal.SIGKILL}, found
    assert ranks(1, lambda _: sharded(tmp_path / "parts", parts, None)) == [0]
    (steps, expected), (found_steps, found) = torch.load(whole), torch.load(parts)
    assert steps == found_steps == 14
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
