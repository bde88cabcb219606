"""Scripts of the kind people already have, which never heard of gflow: taken away by a spot notice they go on
from their own checkpoints (--requeue, --resume-args), and come to the same end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.harness import Box, wait_until
from tests.metadata import Server

SCRIPTS = Path(__file__).parent / "foreign"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needs", "argument", "reached", "resumed"),
    [
        ("plain.py", "torch", "--ckpt_path {latest}", "epoch 3\n", "--ckpt_path checkpoints/epoch3.pt"),
        (
            "with_lightning.py",
            "pytorch_lightning",
            "--ckpt_path {latest}",
            "epoch 3\n",
            "--ckpt_path checkpoints/last.ckpt",
        ),
        (
            "with_trainer.py",
            "accelerate",
            "--resume_from_checkpoint {latest}",
            "step 13\n",
            "--resume_from_checkpoint checkpoints/checkpoint-12",
        ),
    ],
)
def test_unmodified_script_resumes_with_the_same_result(
    box: Box, metadata: Server, name: str, needs: str, argument: str, reached: str, resumed: str
) -> None:
    pytest.importorskip(needs)
    script = SCRIPTS / name
    assert "import gflow" not in script.read_text() and "from gflow" not in script.read_text()
    alone = box.work / "alone"
    alone.mkdir()
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GFLOW_")}
    whole = subprocess.run(
        [sys.executable, script], cwd=alone, env=environ, capture_output=True, text=True, timeout=200
    )
    assert whole.returncode == 0, whole.stderr
    box.env |= {"GFLOW_SPOT__CLOUD": f"aws={metadata.base}", "GFLOW_SPOT__EVERY_SECS": "1"}
    box.up("--cpus", "1")
    (box.work / "wait").touch()
    job = box.submit("--requeue", "--resume-args", argument, sys.executable, str(script))
    wait_until(lambda: reached in box.text_of(job), 120)
    metadata.take()
    wait_until(lambda: box.job(job)["state"] == "Queued", 60)
    (box.work / "wait").unlink()
    metadata.taken = None
    assert box.finished(job, 120)["state"] == "Finished", box.text_of(job)
    log = box.text_of(job)
    assert f"gflow: resuming with {resumed}\n" in log
    assert box.job(job)["attempt"] == 2
    assert log.strip().splitlines()[-1] == whole.stdout.strip().splitlines()[-1]
