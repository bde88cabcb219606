#!/usr/bin/env python3
"""The stopwatch of `gflow scale` on a real GPU, against a clock of its own around the same steps.

tests/gpu/pack 3.12                where there is a network
python3 tests/gpu/scale.py         on the GPU machine; about a minute

Prints samples per second by both, for two batches, and whether they agree within 5 %.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / ".carry/wheels")]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:3], os.environ.get("PYTHONPATH", "")])
WARMUP, SECONDS, SAMPLES = 5, 5, 1 << 17
# `GFLOW_TRY_ON_CPU=1` tries this script itself.
ON_CPU = "GFLOW_TRY_ON_CPU" in os.environ
PROCESS = ("--processes", "1") if ON_CPU else ("--gpus", "1")


def settle(device: object) -> None:
    """Wait for what the GPU still has to do; a CPU has done it."""
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def train(batch: int, out: str) -> None:
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from gflow import train as gflow_train

    data = TensorDataset(torch.randn(4096, 1024).repeat(SAMPLES // 4096, 1))
    run = gflow_train.Run(out + ".checkpoints")
    wide = nn.Sequential(
        *(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(2 if ON_CPU else 24))
    )
    model = run.model(wide)
    run.optimizer(torch.optim.AdamW(model.parameters(), 1e-4))
    device = run.device
    steps, first, began = 0, 0, 0.0
    try:
        for (inputs,) in run.batches(run.loader(data, batch), epochs=1000):
            run.backward(model(inputs).square().mean())
            steps += 1
            if steps == WARMUP + 2:
                settle(device)
                began, first = time.perf_counter(), steps
    finally:  # a measured run ends in the loop, by SystemExit
        settle(device)
        last = time.perf_counter()
        Path(out).write_text(f"{(steps - first) * batch / (last - began)}")


def measured(batch: int, folder: str) -> bool:
    from gflow.ml.scale.measurement import from_meter
    from gflow.ml.scale.sizes import Size

    out, meter = f"{folder}/{batch}.own", f"{folder}/{batch}.meter"
    told = {"GFLOW_METER": meter, "GFLOW_METER_WARMUP": str(WARMUP), "GFLOW_METER_SECONDS": str(SECONDS)}
    words = ["-m", "gflow", "gflow", "launch", *PROCESS, __file__, str(batch), out]
    began = time.monotonic()
    done = subprocess.run([sys.executable, *words], env=os.environ | told)
    found = from_meter(Size(1, 1), Path(meter).read_text(), WARMUP)
    own = float(Path(out).read_text())
    assert found is not None and done.returncode == 0, f"the run ended with {done.returncode}"
    off = found.samples_per_s / own - 1
    print(
        f"batch {batch}: gflow {found.samples_per_s:.0f}/s, its own clock {own:.0f}/s ({off:+.2%}); step "
        f"{found.step_s * 1000:.3f} ms, of which waiting for data {found.data_s * 1000:.3f} ms; "
        f"{found.device}; ended after {time.monotonic() - began:.1f} s; "
        f"checkpoints: {os.path.exists(out + '.checkpoints')}",
        flush=True,
    )
    return abs(off) < 0.05


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(int(sys.argv[1]), sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as made:
            good = [measured(batch, made) for batch in ((64, 8) if ON_CPU else (4096, 128))]
        print("agree" if all(good) else "DISAGREE")
        sys.exit(not all(good))
