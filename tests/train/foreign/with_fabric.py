"""A classifier trained with Lightning Fabric: accumulation and clipping by hand, validation, checkpoints."""

import argparse
import os

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def samples(count, seed):
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs[:, :5].sum(1) > 0).long())


@torch.no_grad()
def validate(fabric, model, loader):
    model.eval()
    right = []
    for inputs, targets in loader:
        right.append(model(inputs).argmax(1) == targets)
    model.train()
    return fabric.all_gather(torch.cat(right)).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--checkpoint", default="checkpoints/last.ckpt")
    args = parser.parse_args()

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.seed_everything(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    train_loader = fabric.setup_dataloaders(DataLoader(samples(192, 1), batch_size=8))
    eval_loader = fabric.setup_dataloaders(DataLoader(samples(100, 2), batch_size=32))
    steps = args.epochs * len(train_loader) // args.accumulate
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": 0}
    if os.path.exists(args.checkpoint):
        fabric.load(args.checkpoint, state)

    for epoch in range(state["epoch"], args.epochs):
        for number, (inputs, targets) in enumerate(train_loader, 1):
            is_accumulating = number % args.accumulate != 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                fabric.backward(loss / args.accumulate)
            fabric.print(f"loss {loss.item():.6f}")
            if not is_accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        fabric.print(f"epoch {epoch}: accuracy {validate(fabric, model, eval_loader):.4f}")
        state["epoch"] = epoch + 1
        fabric.save(args.checkpoint, state)


if __name__ == "__main__":
    main()
