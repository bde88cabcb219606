#!/usr/bin/env python3
"""gflow.train on a real NVIDIA GPU: the same curve, the scaler, the batch finder, and what it all costs.

    tests/gpu/pack 3.12                         where there is a network
    python tests/gpu/train.py [--minutes 10] [largest buckets …]     on the GPU machine

Needs PyTorch and transformers; accelerate's and Lightning's batch finders are tried beside ours if they are
there. Prints one line for each figure and a JSON object at the end.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / ".carry/wheels")]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:3], os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from torch import nn  # noqa: E402

GIB = 1 << 30
CAP = 24 * GIB
FIGURES: dict = {}
begun = time.monotonic()
give_up_at = float("inf")


def note(name: str, value) -> None:
    FIGURES[name] = value
    print(f"[{time.monotonic() - begun:6.1f} s] {name}: {value}", flush=True)


# ---------------------------------------------------------------- models


class Small(nn.Module):
    """A little transformer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(128, 1000)

    def forward(self, words):
        return self.head(self.layers(self.words(words)))


def sentences(count: int) -> torch.Tensor:
    return torch.randint(0, 1000, (count, 65), generator=torch.Generator().manual_seed(2))


def gpt2(batch: int, sequence: int = 512):
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    words = torch.zeros(batch, sequence, dtype=torch.long)
    return model, {"input_ids": words, "labels": words}


def bert(batch: int, sequence: int = 512):
    import transformers

    model = transformers.BertForMaskedLM(transformers.BertConfig())
    words = torch.zeros(batch, sequence, dtype=torch.long)
    return model, {"input_ids": words, "labels": words}


def vit(batch: int):
    import transformers

    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))
    return model, {
        "pixel_values": torch.zeros(batch, 3, 224, 224),
        "labels": torch.zeros(batch, dtype=torch.long),
    }


def llama(batch: int, sequence: int = 1024):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
    )
    words = torch.zeros(batch, sequence, dtype=torch.long)
    return transformers.LlamaForCausalLM(config), {"input_ids": words, "labels": words}


MODELS = {"gpt2": (gpt2, 512), "bert": (bert, 512), "vit": (vit, 512), "llama-350m": (llama, 1024)}

# ---------------------------------------------------------------- the same curve


def curve(folder: Path, precision: str, stops: list[int], losses: dict[int, float]) -> float:
    """Train to the end, stopped and taken up at these steps; the last scale of the scaler."""
    from gflow.train import Run

    for stop_at in [*stops, -1]:
        run = Run(folder, precision=precision, clip=1.0, accumulate=2, every_steps=7, device="cuda")
        model = run.model(Small())
        run.optimizer(torch.optim.AdamW(model.parameters(), 1e-3, fused=True))
        run.resume()
        try:
            for words in run.batches(run.loader(sentences(256), 16), 8):
                with run.autocast():
                    logits = model(words[:, :-1]).flatten(0, 1)
                    loss = nn.functional.cross_entropy(logits, words[:, 1:].flatten())
                run.backward(loss)
                losses[run.place.step * 2 + run.place.batches % 2] = loss.item()
                if run.place.step == stop_at:
                    run.stop.ask("test")
        except SystemExit as left:  # a stopped run leaves the program, to be taken up by the next attempt
            assert left.code == 75 and stop_at >= 0
        run.close()
    scaler = run._state.scaler
    return scaler.get_scale() if scaler else 0.0


def same_curves() -> None:
    dice = random.Random(7)
    for precision in ("bf16", "fp16", "fp32"):
        with tempfile.TemporaryDirectory() as folder:
            whole, again, parts = {}, {}, {}
            scale = curve(Path(folder) / "a", precision, [], whole)
            curve(Path(folder) / "b", precision, [], again)
            stops = sorted(dice.sample(range(1, 60), 5))
            curve(Path(folder) / "c", precision, stops, parts)
        noise = max(abs(whole[at] - again[at]) for at in whole)
        apart = max(abs(whole[at] - parts[at]) for at in whole)
        note(
            f"same curve, {precision}",
            {"steps": 64, "stopped at": stops, "largest difference": apart, "of two whole runs": noise,
             "loss": [round(whole[min(whole)], 4), round(whole[max(whole)], 4)], "scale": scale,
             "ok": apart <= max(noise * 3, 2e-3)},
        )  # fmt: skip


def scaler() -> None:
    """fp16: the gradient with the scaler, accumulated, is that of fp32 but for rounding; an overflow is no
    step.
    """
    from gflow.train import Run

    found = {}
    for precision, batch in (("fp32", 32), ("fp16", 32), ("fp16", 8)):
        run = Run(precision=precision, effective_batch=32, device="cuda")
        torch.manual_seed(1)
        model = run.model(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)))
        run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
        data = torch.utils.data.TensorDataset(
            torch.randn(160, 64, generator=torch.Generator().manual_seed(3)), torch.arange(160) % 10
        )
        for inputs, targets in run.batches(run.loader(data, batch)):
            with run.autocast():
                loss = nn.functional.cross_entropy(model(inputs), targets)
            run.backward(loss)
        found[precision, batch] = torch.cat([one.detach().flatten() for one in model.parameters()])
        run.close()
    reference = found["fp32", 32]
    apart = {f"{name} batch {batch}": float((one - reference).abs().max() / reference.abs().max())
             for (name, batch), one in found.items()}  # fmt: skip
    run = Run(precision="fp16", clip=1.0, device="cuda")
    model = run.model(nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    schedule = run.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1))
    before, scale = model.weight.detach().clone(), run._state.scaler.get_scale()
    for inputs in run.batches(run.loader(torch.full((1, 4), 1e4), 1)):
        with run.autocast():
            loss = (model(inputs) * 1e5).sum()
        run.backward(loss)
    skipped = torch.equal(before, model.weight) and run._state.scaler.get_scale() < scale
    note("fp16 scaler", {"apart from fp32": apart, "overflow skipped": skipped,
                         "schedule waited": schedule.last_epoch == 0,
                         "ok": max(apart.values()) < 0.01 and skipped})  # fmt: skip
    run.close()


# ---------------------------------------------------------------- the largest batch


def largest() -> None:
    for name, (make, sequence) in MODELS.items():
        if time.monotonic() > give_up_at:
            note(f"batch of {name}", "no time left")
            continue
        try:
            _largest(name, make, sequence)
        except Exception as error:
            note(f"batch of {name}", f"FAILED: {error!r}")
            traceback.print_exc()


def _largest(name: str, make, sequence: int) -> None:
    from gflow.ml.fit.recipe import Recipe
    from gflow.ml.train.batch_size import attempt, find_batch_size

    device = torch.device("cuda", 0)
    settings = {"precision": "bf16", "sequence": sequence}
    began = time.monotonic()
    found = find_batch_size(make, cap_bytes=CAP, **settings)
    took = time.monotonic() - began
    recipe = Recipe(steps=3, **settings)
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(CAP / total)
    try:
        true = _true(found.batch, lambda size: attempt(make, recipe, size, device) is not None)
        note(f"of {name}", {"ours": found.batch, "true": true, "trials": found.trials})
        longer = Recipe(steps=50, **settings)
        went_on = attempt(make, longer, found.batch, device) is not None
        theirs = _accelerate(make, recipe, device, 128 if true < 128 else 512)
        lightning = _lightning(make, recipe, device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    note(
        f"batch of {name}",
        {"ours": found.batch, "predicted": found.predicted, "trials": len(found.trials),
         "seconds": round(took, 1), "true": true, "of it": round(found.batch / true, 3), "50 steps": went_on,
         "accelerate (batch, trials, s)": theirs, "lightning (batch, trials, s)": lightning,
         "left behind MiB": torch.cuda.memory_allocated() >> 20,
         "ok": len(found.trials) <= 2 and found.batch >= 0.97 * true and went_on},
    )  # fmt: skip


def buckets() -> None:
    """DDP keeps buckets as large as the gradients: the finder counts them in."""
    import torch.distributed as dist

    from gflow.ml.fit.recipe import Recipe
    from gflow.ml.train.batch_size import attempt, find_batch_size

    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)

    def ready(model):
        return nn.parallel.DistributedDataParallel(model, device_ids=[0])

    found = find_batch_size(gpt2, cap_bytes=CAP, ready=ready, precision="bf16", sequence=512)
    recipe = Recipe(steps=3, precision="bf16", sequence=512)
    torch.cuda.set_per_process_memory_fraction(CAP / torch.cuda.mem_get_info()[1])
    true = _true(found.batch, lambda size: attempt(gpt2, recipe, size, device, ready) is not None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    dist.destroy_process_group()
    note(
        "batch of gpt2 with DDP",
        {"ours": found.batch, "predicted": found.predicted, "trials": found.trials, "true": true,
         "left behind MiB": torch.cuda.memory_allocated() >> 20,
         "ok": len(found.trials) <= 2 and found.batch >= 0.97 * true},
    )  # fmt: skip


def _true(near: int, fits) -> int:
    """The largest batch that really fits, by bisection from somewhere near."""
    below, above = near, max(near + 1, int(near * 1.06) + 1)
    while fits(above):
        below, above = above, int(above * 1.1) + 1
    while above - below > max(1, near // 200):
        middle = (below + above) // 2
        below, above = (middle, above) if fits(middle) else (below, middle)
    return below


def _accelerate(make, recipe, device, start: int):
    """A tenth less each time, from its default of 128, or from 512 where more fit."""
    try:
        from accelerate.utils import find_executable_batch_size
    except ImportError:
        return "not installed"
    from gflow.ml.train.batch_size import attempt

    trials = []

    @find_executable_batch_size(starting_batch_size=start)
    def train(batch_size):
        trials.append(batch_size)
        if attempt(make, recipe, batch_size, device) is None:
            raise RuntimeError("CUDA out of memory.")
        return batch_size

    began = time.monotonic()
    return [train(), len(trials), round(time.monotonic() - began, 1)]


def _lightning(make, recipe, device):
    """Lightning's binary search: doubles until it runs out of memory, then bisects, up to its data."""
    try:
        try:
            import lightning.pytorch as pl
        except ImportError:
            import pytorch_lightning as pl
    except ImportError:
        return "not installed"
    from gflow.ml.train.batch_size import _steps, clear

    trials = []

    class Module(pl.LightningModule):
        batch_size = 2

        def training_step(self, batch, at):
            trials.append(self.batch_size)
            clear(device)
            _steps(make, recipe, len(batch), device, None)
            return torch.zeros((), requires_grad=True)

        def configure_optimizers(self):
            return None

        def train_dataloader(self):
            return torch.utils.data.DataLoader(torch.zeros(4096, 1), self.batch_size)

    began = time.monotonic()
    module = Module()
    trainer = pl.Trainer(
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tempfile.mkdtemp(),
    )
    # A trial of ours is three whole steps with a new model, and so is one of theirs.
    found = pl.tuner.Tuner(trainer).scale_batch_size(module, mode="binsearch", steps_per_trial=1)
    return [found, len(trials), round(time.monotonic() - began, 1)]


# ---------------------------------------------------------------- what it costs


def overhead(steps: int = 60) -> None:  # noqa: PLR0915
    """A 125M model: the plain loop, and the same with a run that reports to a listener and saves in the
    background.
    """
    from gflow.train import Run

    folder = Path(tempfile.mkdtemp())
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ear.bind(str(folder / "p"))
    os.environ |= {"GFLOW_PROGRESS": str(folder / "p"), "GFLOW_JOB_ID": "1", "GFLOW_ATTEMPT": "1"}
    words = torch.randint(0, 50257, (64, 512))

    def parts():
        model = gpt2(1)[0]
        return model, words

    def plain() -> list[float]:
        model, data = parts()
        model.cuda().train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        marks = []
        for at in range(steps):
            marks.append(_mark())
            batch = data[(at % 2) * 32 : (at % 2) * 32 + 32].cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return _seconds(marks)

    def ours(save_at: int | None) -> tuple[list[float], float]:
        model, data = parts()
        checkpoints = folder / f"c{time.monotonic()}"
        run = Run(checkpoints, precision="bf16", device="cuda", every_s=1e9)
        run.model(model)
        run.optimizer(torch.optim.AdamW(model.parameters(), 1e-4, fused=True))
        marks = []
        for batch in run.batches(run.loader(data, 32, shuffle=False), steps // 2):
            marks.append(_mark())
            with run.autocast():
                loss = model(input_ids=batch, labels=batch).loss
            run.backward(loss)
            run.log(loss)
            if run.place.step == save_at:
                run.save()
        saved = run._checkpointer.slowest_s
        run.close()
        return _seconds(marks[:steps]), saved

    plain()
    base, with_run, with_save = [], [], []
    for _ in range(3):
        base.append(statistics.median(plain()[10:]))
        with_run.append(statistics.median(ours(None)[0][10:]))
        times, save_s = ours(20)
        with_save.append(sum(times[10:]) - len(times[10:]) * with_run[-1])
        gc.collect()
        torch.cuda.empty_cache()
    step, run_step, save_cost = min(base), min(with_run), statistics.median(with_save)
    percent = 100 * (run_step / step - 1)
    note(
        "overhead on 125M",
        {"plain step ms": round(step * 1e3, 3), "with run and progress ms": round(run_step * 1e3, 3),
         "percent": round(percent, 2), "a checkpoint delays training by s": round(save_cost, 3),
         "and is written after s": round(save_s, 2),
         "percent with one every 10 min": round(percent + 100 * save_cost / 600, 2),
         "percent with one every minute": round(percent + 100 * save_cost / 60, 2),
         "ok": percent + 100 * save_cost / 600 <= 1.0},
    )  # fmt: skip


def _mark():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(marks) -> list[float]:
    torch.cuda.synchronize()
    return [one.elapsed_time(other) / 1000 for one, other in itertools.pairwise(marks)]


# ---------------------------------------------------------------- stopped from outside

SCRIPT = """
import sys, torch
from torch import nn
from gflow.train import Run
with Run(sys.argv[1], precision="bf16", every_s=1e9) as run:
    model = run.model(nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256)))
    run.optimizer(torch.optim.AdamW(model.parameters(), 1e-4))
    print("begins at", run.resume(), flush=True)
    for batch in run.batches(run.loader(torch.randn(4096, 256), 64), int(sys.argv[2])):
        with run.autocast():
            loss = ((model(batch) - batch) ** 2).mean()
        run.backward(loss)
        if run.place.step % 50 == 0: print("step", run.place.step, flush=True)
    print("end at", run.place.step, flush=True)
"""


def stopped() -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "train.py").write_text(SCRIPT)
    words = [
        sys.executable,
        "-m",
        "gflow",
        "launch",
        "--gpus",
        "1",
        str(folder / "train.py"),
        str(folder / "c"),
    ]
    first = subprocess.Popen([*words, "100000"], stdout=subprocess.PIPE, text=True)
    for line in first.stdout:
        if line.startswith("step 100"):
            break
    first.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    first.communicate(timeout=60)
    took = time.monotonic() - asked
    second = subprocess.run([*words, "8"], capture_output=True, text=True, timeout=120)
    begins = int(second.stdout.split("begins at")[1].split()[0])
    ok = first.returncode == 75 and begins >= 100 and second.returncode == 0
    note(
        "TERM under gflow launch",
        {"code": first.returncode, "seconds to the end": round(took, 2), "resumed at step": begins, "ok": ok},
    )


PARTS = {
    "curves": same_curves,
    "scaler": scaler,
    "stopped": stopped,
    "overhead": overhead,
    "largest": largest,
    "buckets": buckets,
}


def main() -> int:
    global give_up_at
    options = argparse.ArgumentParser()
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("parts", nargs="*", default=[], choices=[*PARTS, []])
    options = options.parse_args()
    give_up_at = begun + options.minutes * 60 - 75
    note(
        "machine",
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}",
    )
    for name in options.parts or PARTS:
        if time.monotonic() > give_up_at:
            note(name, "no time left")
            continue
        try:
            PARTS[name]()
        except Exception as error:
            note(name, f"FAILED: {error!r}")
            traceback.print_exc()
    print(json.dumps(FIGURES, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
