"""A classifier trained with accelerate: dropout, accumulation, warm-up, clipping, an average of weights."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


def prepare_data(path, count):
    if not os.path.exists(path):
        inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(count))
        torch.save((inputs, inputs.square()[:, :3].argmax(1)), path)
    return TensorDataset(*torch.load(path))


@torch.no_grad()
def validate(accelerator, model, loader):
    model.eval()
    right = []
    for inputs, targets in loader:
        predicted, targets = accelerator.gather_for_metrics((model(inputs).argmax(1), targets))
        right.append(predicted == targets)
    return torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output_dir", default="checkpoints")
    parser.add_argument("--resume_from_checkpoint", help="a folder such as checkpoints/epoch_1")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    set_seed(0)
    with accelerator.main_process_first():
        train_data, held_out = prepare_data("train.pt", 256), prepare_data("held_out.pt", 100)
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 8))
    train_loader = DataLoader(train_data, batch_size=8, shuffle=True)
    eval_loader = DataLoader(held_out, batch_size=32, generator=torch.Generator())
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    average = AveragedModel(accelerator.unwrap_model(model), multi_avg_fn=get_ema_multi_avg_fn(0.9))
    accelerator.register_for_checkpointing(average)
    starting_epoch, best = 0, 0.0
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
            if accelerator.sync_gradients:
                average.update_parameters(accelerator.unwrap_model(model))
            accelerator.print(f"loss {loss.item().hex()} lr {scheduler.get_last_lr()[0]:.5f}")

        accuracy = validate(accelerator, average, eval_loader)
        accelerator.print(f"epoch {epoch}: accuracy {accuracy.hex()}")
        accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))
        if accuracy > best and accelerator.is_main_process:
            accelerator.save(average.module.state_dict(), os.path.join(args.output_dir, "best.pt"))
        best = max(best, accuracy)
        accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
