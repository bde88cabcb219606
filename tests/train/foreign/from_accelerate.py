"""The script with_accelerate.py, ported to gflow.train."""

import argparse
import os

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from gflow import train


def prepare_data(path, count):
    if not os.path.exists(path):
        inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(count))
        torch.save((inputs, inputs.square()[:, :3].argmax(1)), path)
    return TensorDataset(*torch.load(path))


@torch.no_grad()
def validate(run, model, loader):
    model.eval()
    right = []
    for inputs, targets in loader:
        predicted, targets = run.gather((model(inputs).argmax(1), targets))
        right.append(predicted == targets)
    return torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output_dir", default="checkpoints")
    args = parser.parse_args()

    run = train.Run(args.output_dir, device="cpu", accumulate=4, clip=1.0, keep_best=1)
    with run.ranks.rank_zero_first():
        train_data, held_out = prepare_data("train.pt", 256), prepare_data("held_out.pt", 100)
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 3))
    model = run.model(model)
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    scheduler = run.scheduler(
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 8))
    )
    if run.ranks.world == 1:  # in the order of the other script
        train_loader = DataLoader(train_data, batch_size=8, shuffle=True)
    else:
        train_loader = run.loader(train_data, 8)
    eval_loader = run.loader(held_out, 32)
    average = AveragedModel(run.unwrap(model), multi_avg_fn=get_ema_multi_avg_fn(0.9))
    run.keep("average", average)
    run.on_step(lambda: average.update_parameters(run.unwrap(model)))

    @run.on_epoch
    def report():
        accuracy = validate(run, average, eval_loader)
        run.print(f"epoch {run.place.epoch}: accuracy {accuracy.hex()}")
        run.save(score=accuracy)

    run.resume()
    with run:
        for inputs, targets in run.batches(train_loader, args.epochs):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            run.backward(loss)
            run.print(f"loss {loss.item().hex()} lr {scheduler.get_last_lr()[0]:.5f}")


if __name__ == "__main__":
    main()
