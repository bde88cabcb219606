"""A classifier trained with accelerate, as its examples do it: clipping, validation, checkpoints."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def samples(count, seed):
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs[:, :5].sum(1) > 0).long())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output_dir", default="checkpoints")
    parser.add_argument("--resume_from_checkpoint", help="a folder such as checkpoints/epoch_1")
    args = parser.parse_args()

    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train_loader = DataLoader(samples(192, 1), batch_size=8)
    eval_loader = DataLoader(samples(100, 2), batch_size=32)
    steps = args.epochs * len(train_loader) // 4
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    starting_epoch = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        starting_epoch = int(args.resume_from_checkpoint.rpartition("_")[2]) + 1

    for epoch in range(starting_epoch, args.epochs):
        model.train()
        for inputs, targets in train_loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            accelerator.print(f"loss {loss.item():.6f}")

        model.eval()
        right = []
        for inputs, targets in eval_loader:
            with torch.no_grad():
                outputs = model(inputs)
            predicted, targets = accelerator.gather_for_metrics((outputs.argmax(1), targets))
            right.append(predicted == targets)
        accuracy = torch.cat(right).float().mean().item()
        accelerator.print(f"epoch {epoch}: accuracy {accuracy:.4f}")
        accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))

    accelerator.save_model(model, os.path.join(args.output_dir, "final"))


if __name__ == "__main__":
    main()
