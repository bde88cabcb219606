"""The script with_fabric.py, ported to gflow.train."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from gflow import train

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
def validate(run, model, loader):
    losses = [run.gather(loss_of(model, batch[:, :-1], batch[:, 1:])) for batch in loader]
    return torch.stack(losses).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", default="checkpoints")
    args = parser.parse_args()

    with train.Run(args.folder, device="cpu", accumulate=ACCUMULATE, clip=1.0, keep_best=1) as run:
        with run.ranks.rank_zero_first():
            write_text("text.pt")
        text = torch.load("text.pt")
        model = run.model(Writer())
        optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        train_loader = DataLoader(Crops(text[:3000], 192), batch_size=8)
        eval_loader = run.loader(text[3000:3960].view(60, 16), 8)
        run.scheduler(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=args.epochs * 6 + 1))

        @run.on_step
        def report_step():
            run.print(f"norm {run.grad_norm.item().hex()}")

        @run.on_epoch
        def report_epoch():
            held_out = validate(run, model, eval_loader)
            run.print(f"epoch {run.place.epoch}: held out {held_out.hex()}")
            run.save(score=-held_out)

        run.resume()
        for inputs, targets in run.batches(train_loader, args.epochs):
            loss = loss_of(model, inputs, targets)
            run.backward(loss)
            run.print(f"loss {loss.item().hex()}")


if __name__ == "__main__":
    main()
