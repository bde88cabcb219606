"""Callbacks with the libraries they are for: gflow hears how far training is, and it stops when asked."""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gflow.ml.train import callbacks  # noqa: E402
from gflow.ml.train.progress import Reporter  # noqa: E402

pytestmark = pytest.mark.slow  # what they are for takes long to load
torch.set_num_threads(1)
_usual = Reporter.__init__


def _always(self, environ=None, every_s=0.0) -> None:
    _usual(self, environ, 0.0)


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """What gflow hears, as a job of it says it; every step, not once a second."""
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    ear.bind(str(tmp_path / "progress"))
    monkeypatch.setenv("GFLOW_PROGRESS", str(tmp_path / "progress"))
    monkeypatch.setenv("GFLOW_JOB_ID", "7")
    monkeypatch.setenv("GFLOW_ATTEMPT", "1")
    monkeypatch.setattr("gflow.ml.train.progress.Reporter.__init__", _always)

    def said() -> list[dict]:
        found = []
        while True:
            try:
                found.append(json.loads(ear.recv(4096)))
            except BlockingIOError:
                return found

    yield said
    ear.close()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


def test_tqdm_reports_progress(heard):
    pytest.importorskip("tqdm")
    assert list(callbacks.tqdm(range(5), disable=True)) == [0, 1, 2, 3, 4]
    said = heard()
    assert [one["step"] for one in said] == [1, 2, 3, 4, 5] and said[0]["steps"] == 5
    bar = callbacks.tqdm(total=10, file=open(os.devnull, "w"))
    bar.update(4)
    bar.close()
    assert heard()[-1]["step"] == 4


def test_accelerate_reports_progress(heard):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, log_with=callbacks.accelerate())
    accelerator.init_trackers("run", config={"steps": 3})
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for step in range(1, 4):
        loss = model(torch.ones(2, 4))["loss"]
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss.item()}, step=step)
    accelerator.end_training()
    said = heard()
    assert [(one["step"], one["steps"]) for one in said] == [(1, 3), (2, 3), (3, 3)]
    assert all(one["loss"] >= 0 for one in said)


def trainer(folder, callback, **options):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    settings = transformers.TrainingArguments(
        str(folder), max_steps=6, per_device_train_batch_size=2, logging_steps=1, save_strategy="no",
        use_cpu=True, report_to=[], disable_tqdm=True, **options,
    )  # fmt: skip
    data = [{"x": torch.ones(4)} for _ in range(12)]
    return transformers.Trainer(model=Net(), args=settings, train_dataset=data, callbacks=[callback])


def test_transformers_reports_progress(heard, tmp_path):
    callback = callbacks.transformers()
    trainer(tmp_path / "out", callback).train()
    said = heard()
    assert [one["step"] for one in said] == [1, 2, 3, 4, 5, 6] and said[-1]["steps"] == 6
    assert "loss" in said[-1] and not callback.stopped


def test_transformers_stops_when_asked_saves_and_goes_on(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    callback = callbacks.transformers()

    class Term(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **more):
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    one = trainer(tmp_path / "out", callback)
    one.add_callback(Term())
    one.train()
    assert callback.stopped and one.state.global_step == 3
    assert (tmp_path / "out/checkpoint-3").is_dir()
    assert signal.getsignal(signal.SIGTERM) == before
    again = trainer(tmp_path / "out", callbacks.transformers())
    again.train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-3"))
    assert again.state.global_step == 6


def lightning_parts(folder, callback, epochs=2):
    pl = pytest.importorskip("pytorch_lightning")

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.term_at = -1

        def training_step(self, batch, at):
            if self.global_step == self.term_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return self.net(batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    made = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(folder),
    )  # fmt: skip
    return made, Module(), torch.utils.data.DataLoader(torch.ones(8, 4), 2)


def test_lightning_reports_progress(heard, tmp_path):
    callback = callbacks.lightning()
    made, module, loader = lightning_parts(tmp_path, callback)
    made.fit(module, loader)
    said = heard()
    assert [one["step"] for one in said] == list(range(1, 9)) and said[-1]["steps"] == 8
    assert said[-1]["epochs"] == 2 and "loss" in said[-1] and not callback.stopped


def test_lightning_stops_when_asked_saves_and_goes_on(tmp_path):
    callback = callbacks.lightning()
    made, module, loader = lightning_parts(tmp_path, callback)
    module.term_at = 2
    made.fit(module, loader)
    assert callback.stopped and made.global_step == 3
    assert (tmp_path / "last.ckpt").is_file()
    again, module, loader = lightning_parts(tmp_path, callbacks.lightning())
    again.fit(module, loader, ckpt_path=str(tmp_path / "last.ckpt"))
    assert again.global_step == 8
