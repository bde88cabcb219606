"""The whole way: a limit that is too short, a daemon that is killed, and the right loss at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.harness import Box, wait_until

SCRIPT = """
import os, sys, time
import torch
from torch import nn
from gflow.train import Run
torch.set_num_threads(1)
attempt = int(os.environ.get("GFLOW_ATTEMPT", "9"))
with Run(sys.argv[1], device="cpu", every_s=1e9) as run:
    torch.manual_seed(0)
    model = run.model(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)))
    run.optimizer(torch.optim.AdamW(model.parameters(), 0.01))
    data = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    print("attempt", attempt, "begins at", run.resume(), flush=True)
    for batch in run.batches(run.loader(data, 8), 4):
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        run.backward(loss)
        run.log(loss)
        # The first two attempts never get further than a step before their time is up.
        while attempt < 3 and not run.stop.is_asked:
            time.sleep(0.05)
    if not run.stopped:
        print("loss", loss.item().hex(), flush=True)
"""


@pytest.mark.slow
def test_three_attempts_and_the_right_loss(box: Box) -> None:
    (box.work / "train.py").write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GFLOW_")}
    whole = subprocess.run(
        [sys.executable, "train.py", "whole"], cwd=box.work, env=environ, capture_output=True, text=True
    )
    assert whole.returncode == 0, whole.stderr
    box.up("--cpus", "2")
    job = box.submit("--requeue", "--time", "0:20", sys.executable, "train.py", "checkpoints")
    wait_until(lambda: "attempt 2 begins at 1\n" in box.text_of(job), 90)
    box.kill9()
    box.up()
    assert box.finished(job, 120)["state"] == "Finished"
    log = box.text_of(job)
    assert "attempt 3 begins at 2\n" in log and "(time limit)" in log
    assert box.job(job)["attempt"] == 3
    assert log.strip().splitlines()[-1] == whole.stdout.strip().splitlines()[-1]
    assert box.job(job)["progress"]["percent"] == 100
    assert Path(box.work / "checkpoints/latest").resolve().name == "step-00000032"
