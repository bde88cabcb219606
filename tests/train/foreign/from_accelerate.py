"""The script with_accelerate.py, ported to gflow.train."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gflow import train


def samples(count, seed):
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs[:, :5].sum(1) > 0).long())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output_dir", default="checkpoints")
    args = parser.parse_args()

    run = train.Run(args.output_dir, device="cpu", accumulate=4, clip=1.0)
    model = run.model(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    train_loader = run.loader(samples(192, 1), 8, shuffle=False)
    eval_loader = run.loader(samples(100, 2), 32, shuffle=False)
    steps = args.epochs * len(train_loader) // 4
    run.scheduler(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps))

    @run.on_epoch
    def validate():
        model.eval()
        right = []
        for inputs, targets in eval_loader:
            with torch.no_grad():
                outputs = model(inputs)
            predicted, targets = run.gather((outputs.argmax(1), targets))
            right.append(predicted == targets)
        model.train()
        accuracy = torch.cat(right).float().mean().item()
        run.print(f"epoch {run.place.epoch}: accuracy {accuracy:.4f}")
        run.save(score=accuracy)

    run.resume()
    with run:
        for inputs, targets in run.batches(train_loader, args.epochs):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            run.backward(loss)
            run.print(f"loss {loss.item():.6f}")

        run.export(os.path.join(args.output_dir, "final.safetensors"))


if __name__ == "__main__":
    main()
