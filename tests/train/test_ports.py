"""Ports of scripts of accelerate and Lightning Fabric to gflow.train: the same losses and accuracy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPTS = Path(__file__).parent / "foreign"


def run(name: str, folder: Path, code: int = 0, **environ: str) -> list[str]:
    """The lines that a script prints in this folder."""
    folder.mkdir(exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GFLOW_")}
    words = [sys.executable, SCRIPTS / f"{name}.py"]
    done = subprocess.run(
        words, cwd=folder, env=kept | environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "needs"), [("accelerate", "accelerate"), ("fabric", "lightning_fabric")])
def test_ported_script_has_the_same_losses_also_after_a_stop(tmp_path, name, needs):
    pytest.importorskip(needs)
    expected = run(f"with_{name}", tmp_path / "theirs")
    assert len([line for line in expected if line.startswith("loss ")]) == 72
    assert [line.split(":")[0] for line in expected if "accuracy" in line] == [
        "epoch 0",
        "epoch 1",
        "epoch 2",
    ]
    assert run(f"from_{name}", tmp_path / "ours") == expected
    (tmp_path / "stop").touch()
    begin = run(f"from_{name}", tmp_path / "parts", 75, GFLOW_STOP_FILE=str(tmp_path / "stop"))
    assert 0 < len(begin) < 24, "within the first epoch"
    assert begin + run(f"from_{name}", tmp_path / "parts") == expected
