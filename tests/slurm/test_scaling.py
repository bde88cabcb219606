"""gflow scale on a cluster: 1, 2 and 4 GPUs, on one node and on two."""

from __future__ import annotations

import json
import os

import pytest

from tests.unit.test_scale import SCRIPT

pytestmark = pytest.mark.slow


def test_scale_on_one_two_and_four_gpus(slurm):
    (slurm.work / "train.py").write_text(SCRIPT)
    done = slurm.run(
        "gflow", "scale", "--on", "slurm", "--gpus", "1,2,4", "--shape", "n2_gpu2", "--warmup", "2",
        "--job", "--time 5", "--json", "--", "train.py", timeout_s=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    sizes = [row["measured"]["size"] for row in found["rows"]]
    assert [(size["nodes"], size["each"]) for size in sizes] == [(1, 1), (1, 2), (1, 4), (2, 2)]
    # Each GPU has eight samples a step, so what was measured ran on as many as it says.
    assert [row["measured"]["effective_batch"] for row in found["rows"]] == [8, 16, 32, 32]
    assert found["kind"] == "weak"
    assert all(slurm.job(number)["target"] == "slurm" for number in range(1, 5))
    assert os.listdir(slurm.work) == ["train.py"]
