"""A Lightning script as people have them: ModelCheckpoint with save_last, and --ckpt_path for fit."""

import argparse
import os
import time

import torch
from torch import nn

try:
    import lightning.pytorch as pl
except ModuleNotFoundError:
    import pytorch_lightning as pl

options = argparse.ArgumentParser()
options.add_argument("--ckpt_path")
options = options.parse_args()
torch.set_num_threads(1)
pl.seed_everything(0)


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.loss = 0.0

    def training_step(self, batch, at):
        loss = (self.net(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.loss = loss.detach()
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)

    def on_train_epoch_start(self):
        print("epoch", self.current_epoch, flush=True)
        # Where the test takes the machine away. Lightning notes TERM and stops after the batch.
        while os.path.exists("wait") and self.current_epoch == 3 and not self.trainer.received_sigterm:
            time.sleep(0.05)


data = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
saver = pl.callbacks.ModelCheckpoint(dirpath="checkpoints", save_last=True)
trainer = pl.Trainer(
    max_epochs=6, accelerator="cpu", callbacks=[saver], logger=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
net = Net()
trainer.fit(net, torch.utils.data.DataLoader(data, 8), ckpt_path=options.ckpt_path)
print("loss", net.loss.item().hex(), flush=True)
