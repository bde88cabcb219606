"""A small training with everything that must survive: dropout, momentum, a schedule, random numbers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from gflow.train import Run

torch.set_num_threads(1)
SAMPLES, BATCH, ACCUMULATE, EPOCHS = 26, 3, 2, 3
STEPS = EPOCHS * 5
Interrupt = Callable[[Run], None]


class Points(Dataset):  # type: ignore[type-arg]
    """Noise is drawn when a sample is taken, as augmentations do."""

    def __init__(self, count: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(count, 6, generator=generator)
        self.targets = self.inputs @ torch.randn(6, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[at] + 0.01 * torch.randn(6) * random.random(), self.targets[at]


def net() -> nn.Module:
    torch.manual_seed(1)
    # A rank may get a single sample, of which there is no variance.
    norm = nn.LayerNorm(16) if "WORLD_SIZE" in os.environ else nn.BatchNorm1d(16)
    return nn.Sequential(nn.Linear(6, 16), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


def train(
    folder: Path,
    said: Path,
    interrupt: Interrupt | None = None,
    own_loader: bool = False,
    batch: int = BATCH,
    **options: Any,
) -> str:
    """One attempt; every loss goes into the file `said`. Why it stopped, empty at the end."""
    with_defaults = {"accumulate": ACCUMULATE, "clip": 1.0, "every_steps": 4, "device": "cpu"} | options
    run = Run(folder, **with_defaults)
    model = run.model(net())
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), 0.02))
    run.scheduler(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS))
    if own_loader:
        loader: Any = torch.utils.data.DataLoader(Points(), BATCH, shuffle=True)
    else:
        loader = run.loader(Points(), batch)
    run.resume()
    with suppress(SystemExit):  # a run that stops early ends the program with 75
        for inputs, targets in run.batches(loader, EPOCHS):
            with run.autocast():
                loss = nn.functional.mse_loss(model(inputs), targets)
            run.backward(loss)
            with said.open("a") as file:
                file.write(f"{run.place.step}.{run.place.batches} {loss.item().hex()}\n")
            if interrupt is not None:
                interrupt(run)
        run.close()
    return run.stopped


def curve(said: Path) -> dict[str, str]:
    """The losses by step and batch. A step that was computed twice must have come out the same."""
    found: dict[str, str] = {}
    for line in said.read_text().splitlines():
        at, loss = line.split()
        assert found.setdefault(at, loss) == loss, f"{at}: {found[at]} and then {loss}"
    return found


def in_child(act: Callable[[], Any]) -> int:
    """Run in a process of its own; how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
