"""A training run on a CPU, for a few seconds. Stop it with TERM or a time limit; the next start resumes.

python examples/cpu.py
gbatch --requeue --time 0:20 python examples/cpu.py --epochs 40 --pause 0.1
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gflow import train

options = argparse.ArgumentParser()
options.add_argument("--checkpoints", default="checkpoints")
options.add_argument("--epochs", type=int, default=5)
options.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each step")
options = options.parse_args()

torch.manual_seed(0)
inputs = torch.randn(1000, 20)
targets = (inputs @ torch.randn(20, 1) > 0).float()

with train.Run(options.checkpoints, device="cpu", every_steps=50) as run:
    model = run.model(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), 1e-3))
    loader = run.loader(TensorDataset(inputs, targets), batch_size=50)
    print(f"begins at step {run.resume()}")
    for inputs, targets in run.batches(loader, options.epochs):
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), targets)
        run.backward(loss)
        time.sleep(options.pause)
    if not run.stopped:
        print(f"done: step {run.place.step}, loss {loss.item():.6f}")
