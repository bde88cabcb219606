"""DeepSpeed's ZeRO with a generated configuration. Needs deepspeed and a GPU.

gflow launch examples/zero.py
"""

import os

import deepspeed
import torch
from torch import nn

from gflow import train
from gflow.train.deepspeed import config

world = int(os.environ.get("WORLD_SIZE", "1"))
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), 1e-3),
    config=config(stage=2, batch=16, world=world, effective_batch=16 * world * 2),
)
stop = train.Stop().listen()
for step in range(100):
    batch = torch.randn(16, 64, device=engine.device, dtype=torch.bfloat16)
    loss = nn.functional.mse_loss(engine(batch), batch)
    engine.backward(loss)
    engine.step()
    train.report(step, steps=100, loss=loss)
    if stop.is_asked and world == 1:
        engine.save_checkpoint("checkpoints-zero")
        raise SystemExit(75)
print("done: step 100")
