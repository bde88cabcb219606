"""The script with_fabric.py, ported to gflow.train."""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gflow import train


def samples(count, seed):
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs[:, :5].sum(1) > 0).long())


@torch.no_grad()
def validate(run, model, loader):
    model.eval()
    right = []
    for inputs, targets in loader:
        right.append(run.gather(model(inputs).argmax(1) == targets))
    model.train()
    return torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--checkpoints", default="checkpoints")
    args = parser.parse_args()

    with train.Run(args.checkpoints, device="cpu", accumulate=args.accumulate, clip=1.0) as run:
        model = run.model(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)))
        optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        train_loader = run.loader(samples(192, 1), 8, shuffle=False)
        eval_loader = run.loader(samples(100, 2), 32, shuffle=False)
        steps = args.epochs * len(train_loader) // args.accumulate
        run.scheduler(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps))

        @run.on_epoch
        def report():
            run.print(f"epoch {run.place.epoch}: accuracy {validate(run, model, eval_loader):.4f}")
            run.save()

        run.resume()
        for inputs, targets in run.batches(train_loader, args.epochs):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            run.backward(loss)
            run.print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
