"""A usual training loop: saves after every epoch, resumes if it is told from what."""

import argparse
import os
import time

import torch
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--ckpt_path")
options.add_argument("--epochs", type=int, default=6)
options = options.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
data = torch.randn(64, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
begin = 0
if options.ckpt_path:
    saved = torch.load(options.ckpt_path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["epoch"]
print("begins at epoch", begin, flush=True)
os.makedirs("checkpoints", exist_ok=True)
for epoch in range(begin, options.epochs):
    for batch in data.split(8):
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
    torch.save(saved, "checkpoints/new.tmp")
    os.replace("checkpoints/new.tmp", f"checkpoints/epoch{epoch + 1}.pt")
    print("epoch", epoch + 1, flush=True)
    while os.path.exists("wait") and epoch == 2:  # where the test takes the machine away
        time.sleep(0.05)
print("loss", loss.item().hex(), flush=True)
