"""DeepSpeed's ZeRO on the CPU, with gloo: `examples/zero.py` stops on TERM and resumes equal."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples/zero.py"
# DeepSpeed compiles an extension for the CPU when it starts, which takes minutes; it works without.
DRIVER = """
import os, runpy, signal, sys
import deepspeed, torch
from gflow import train

deepspeed.ops.__compatible_ops__.update(dict.fromkeys(deepspeed.ops.__compatible_ops__, False))
report, stop_at = train.report, int(sys.argv[2])

def report_and_stop(step, **more):
    report(step, **more)
    if step == stop_at and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)

train.report = report_and_stop
made = runpy.run_path(sys.argv[1], run_name="__main__")
torch.save(made["model"].state_dict(), sys.argv[3] + os.environ["RANK"])
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed")
def test_zero_run_that_is_stopped_resumes_with_equal_weights(tmp_path):
    """TERM reaches one of two ranks; both save after the same step, and leave with 75."""
    (tmp_path / "driver.py").write_text(DRIVER)

    def run(folder: str, stop_at: int) -> int:
        (tmp_path / folder).mkdir(exist_ok=True)
        command = [sys.executable, "-m", "gflow", "gflow", "launch", "--processes", "2", "../driver.py"]
        return subprocess.run(
            [*command, str(EXAMPLE), str(stop_at), "weights.pt"],
            cwd=tmp_path / folder,
            env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
            timeout=300,
        ).returncode

    assert run("whole", 0) == 0
    # A request in the last step finds nothing left to do.
    assert [run("parts", stop_at) for stop_at in (30, 31, 100)] == [75, 75, 0]
    assert (tmp_path / "parts/checkpoints-zero/latest").read_text() == "global_step31"
    for rank in "01":
        whole, parts = (torch.load(tmp_path / folder / f"weights.pt{rank}") for folder in ("whole", "parts"))
        assert all(torch.equal(whole[name], parts[name]) for name in whole)
