"""A language model trained with Lightning Fabric: a stream of random crops, accumulation by hand."""

import argparse
import os

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ACCUMULATE = 4


class Crops(IterableDataset):
    """Random pieces of a text; their number is not known to the loader."""

    def __init__(self, text, count):
        self.text, self.count = text, count

    def __iter__(self):
        for _ in range(self.count):
            at = int(torch.randint(len(self.text) - 17, ()))
            yield self.text[at : at + 16], self.text[at + 1 : at + 17]


class Writer(nn.Module):
    def __init__(self, words=32, width=48):
        super().__init__()
        self.embed, self.out = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.GRU(width, width, batch_first=True)

    def forward(self, text):
        return self.out(self.layers(self.embed(text))[0])


def write_text(path):
    if not os.path.exists(path):
        steps = torch.randint(3, (4000,), generator=torch.Generator().manual_seed(0))
        torch.save((steps + 1).cumsum(0) % 32, path)


def loss_of(model, inputs, targets):
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(fabric, model, loader):
    losses = [loss_of(model, batch[:, :-1], batch[:, 1:]) for batch in loader]
    return fabric.all_reduce(torch.stack(losses).mean(), reduce_op="mean").item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", default="checkpoints")
    args = parser.parse_args()

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    with fabric.rank_zero_first():
        write_text("text.pt")
    text = torch.load("text.pt")
    fabric.seed_everything(0)
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    train_loader = fabric.setup_dataloaders(DataLoader(Crops(text[:3000], 192), batch_size=8))
    eval_data = text[3000:3960].view(60, 16)
    eval_loader = fabric.setup_dataloaders(DataLoader(eval_data, batch_size=8, generator=torch.Generator()))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=args.epochs * 6 + 1)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": 0, "best": 9.0}
    last = os.path.join(args.folder, "last.ckpt")
    if os.path.exists(last):
        fabric.load(last, state)

    for epoch in range(state["epoch"], args.epochs):
        for number, (inputs, targets) in enumerate(train_loader, 1):
            is_accumulating = number % ACCUMULATE != 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = loss_of(model, inputs, targets)
                fabric.backward(loss / ACCUMULATE)
            fabric.print(f"loss {loss.item().hex()}")
            if not is_accumulating:
                norm = fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                fabric.print(f"norm {norm.item().hex()}")
        held_out = validate(fabric, model, eval_loader)
        fabric.print(f"epoch {epoch}: held out {held_out.hex()}")
        is_best, state["epoch"] = held_out < state["best"], epoch + 1
        state["best"] = min(held_out, state["best"])
        fabric.save(last, state)
        if is_best and fabric.is_global_zero:
            torch.save(model.module.state_dict(), os.path.join(args.folder, "best.pt"))
        fabric.barrier()


if __name__ == "__main__":
    main()
