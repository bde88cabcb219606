"""Ports of scripts of accelerate and Lightning Fabric to gflow.train: the same losses to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPTS = Path(__file__).parent / "foreign"


# Batches after which the run is asked to stop: within the first epoch, and within the second one.
STOPS = (6, 45)


def run(name: str, folder: Path, *, stop_after: int = 0) -> list[str]:
    """The lines that a script prints in this folder. It is asked to stop after so many batches; 0: never."""
    folder.mkdir(exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GFLOW_")}
    stop_file = folder / "stop"
    process = subprocess.Popen(
        [sys.executable, "-u", SCRIPTS / f"{name}.py"],
        cwd=folder,
        env=kept | {"GFLOW_STOP_FILE": str(stop_file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if sum(one.startswith("loss ") for one in lines) == stop_after:
            stop_file.touch()
    assert process.wait(60) == (75 if stop_after else 0), process.stderr and process.stderr.read()
    stop_file.unlink(missing_ok=True)
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needs", "batches", "more"),
    [
        ("accelerate", "accelerate", 96, ["epoch"] * 3),
        ("fabric", "lightning_fabric", 72, ["norm"] * 18 + ["epoch"] * 3),
    ],
)
def test_ported_script_has_the_same_losses_also_after_stops(tmp_path, name, needs, batches, more):
    """To the last bit: shuffled data, random crops, dropout, clipping, schedule, average of weights."""
    pytest.importorskip(needs)
    expected = run(f"with_{name}", tmp_path / "theirs")
    assert sorted(line.split()[0] for line in expected) == sorted(["loss"] * batches + more)
    assert len(set(expected)) == len(expected), "losses that cannot tell a batch from another"
    assert run(f"from_{name}", tmp_path / "ours") == expected

    found: list[str] = []
    for after in STOPS:
        found += run(f"from_{name}", tmp_path / "parts", stop_after=after)
    assert 6 < len(found) < len(expected) - 10
    assert found + run(f"from_{name}", tmp_path / "parts") == expected

    best = torch.load(tmp_path / "theirs/checkpoints/best.pt", weights_only=True)
    ours = torch.load(tmp_path / "parts/checkpoints/best/state.pt", weights_only=True)
    weights = ours["others"]["average"] if name == "accelerate" else ours["model"]
    assert all(torch.equal(weights[key if key in weights else f"module.{key}"], best[key]) for key in best)
