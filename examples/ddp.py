"""Data parallel training (DDP): each GPU has a replica of the model. Without GPUs: --processes 2.

    gflow launch examples/ddp.py
    gbatch --gpus 4 --requeue --time 4:00:00 gflow launch examples/ddp.py

To convert a script from DataParallel, remove `nn.DataParallel(model)` and use the loop below. There is one
process per GPU instead of one for all GPUs, and each gets a share of the samples. `effective_batch` is the
number of samples per step over all GPUs.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gflow import train

torch.manual_seed(0)
inputs = torch.randn(2000, 20)
targets = (inputs @ torch.randn(20, 1) > 0).float()

with train.Run("checkpoints-ddp", effective_batch=128, clip=1.0) as run:
    model = run.model(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)))
    run.optimizer(torch.optim.AdamW(model.parameters(), 1e-3))
    loader = run.loader(TensorDataset(inputs, targets), batch_size=16)
    run.resume()
    for inputs, targets in run.batches(loader, epochs=3):
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), targets)
        run.backward(loss)
        run.log(loss)
    if not run.stopped and run.ranks.is_first:
        print(f"done: step {run.place.step} on {run.ranks.world} ranks, loss {loss.item():.4f}")
