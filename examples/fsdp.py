"""Sharded training (FSDP2): each rank holds a part of the parameters, gradients and optimizer state.

gflow launch examples/fsdp.py
gflow launch --processes 2 examples/fsdp.py      without GPUs
"""

import torch
from torch import nn

from gflow import train


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))
        self.head = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


precision = "bf16" if torch.cuda.is_available() else "fp32"
with train.Run("checkpoints-fsdp", strategy="fsdp", precision=precision, gradient_checkpointing=True) as run:
    torch.manual_seed(0)
    model = run.model(Net())
    run.optimizer(torch.optim.AdamW(model.parameters(), 1e-3))
    run.resume()
    for batch in run.batches(run.loader(torch.randn(512, 64), batch_size=16), epochs=2):
        with run.autocast():
            loss = nn.functional.mse_loss(model(batch), batch)
        run.backward(loss)
        run.log(loss)
    if not run.stopped and run.ranks.is_first:
        print(f"done: step {run.place.step} on {run.ranks.world} ranks, loss {loss.item():.4f}")
