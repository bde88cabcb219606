"""A script with transformers.Trainer as people have them: saves now and then, resumes from a path."""

import argparse
import os
import time

import torch
import transformers
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--resume_from_checkpoint")
options = options.parse_args()
torch.set_num_threads(1)
transformers.set_seed(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return {"loss": (self.net(x) - x.sum(1, keepdim=True)).square().mean()}


class Wait(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        while os.path.exists("wait") and state.global_step == 13:  # where the test takes the machine away
            print("step", state.global_step, flush=True)
            time.sleep(0.05)

    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in (logs or {}):
            print("at", state.global_step, flush=True)


data = [{"x": one} for one in torch.randn(64, 8, generator=torch.Generator().manual_seed(1))]
settings = transformers.TrainingArguments(
    "checkpoints", max_steps=24, per_device_train_batch_size=8, save_steps=4, save_total_limit=2,
    logging_steps=1, learning_rate=0.01, use_cpu=True, report_to=[], disable_tqdm=True,
)  # fmt: skip
model = Net()
trainer = transformers.Trainer(model=model, args=settings, train_dataset=data, callbacks=[Wait()])
trainer.train(resume_from_checkpoint=options.resume_from_checkpoint)
print("loss", model(torch.ones(4, 8))["loss"].item().hex(), flush=True)
