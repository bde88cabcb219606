"""DeepSpeed's ZeRO with a generated configuration; stops on request and resumes. Needs deepspeed.

gbatch --requeue --gpus 2 gflow launch examples/zero.py
"""

import os

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from gflow import train
from gflow.train.deepspeed import config

STEPS, BATCH, FOLDER = 100, 16, "checkpoints-zero"
world, rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", 1), ("RANK", 0)))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), 1e-3),
    config=config(stage=2, batch=BATCH, world=world),
)
_, kept = engine.load_checkpoint(FOLDER)
stop = train.Stop().listen()
for step in range(kept["step"] if kept else 0, STEPS):
    generator = torch.Generator().manual_seed(step * world + rank)
    batch = torch.randn(BATCH, 64, generator=generator).to(engine.device, torch.bfloat16)
    loss = nn.functional.mse_loss(engine(batch), batch)
    engine.backward(loss)
    engine.step()
    train.report(step + 1, steps=STEPS, loss=loss)
    # All ranks stop after the same step: DeepSpeed saves and loads with all of them.
    asked = torch.tensor(int(stop.is_asked), device=engine.device)
    dist.all_reduce(asked, dist.ReduceOp.MAX)
    if asked and step + 1 < STEPS:
        engine.save_checkpoint(FOLDER, client_state={"step": step + 1})
        raise SystemExit(75)
if rank == 0:
    print(f"done: step {STEPS}, loss {loss.item():.4f}")
