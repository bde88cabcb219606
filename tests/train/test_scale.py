"""Runs under `gflow scale`: measured, ended, and without a trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gflow.ml.scale.measurement import from_meter  # noqa: E402
from gflow.ml.scale.sizes import Size  # noqa: E402
from gflow.ml.train.data.data_loader import Loader  # noqa: E402
from tests.harness import Box  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402
from tests.train.small import train  # noqa: E402

ROOT = Path(__file__).parents[2]


def test_a_run_that_is_measured_ends_and_leaves_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("GFLOW_METER", str(tmp_path / "m"))
    monkeypatch.setenv("GFLOW_METER_WARMUP", "2")
    monkeypatch.setenv("GFLOW_METER_SECONDS", "0.001")

    def act(rank: int) -> None:
        stopped = train(tmp_path / "c", tmp_path / f"said{rank}", batch=1)
        sys.exit(0 if stopped == "measured" else 1)

    assert ranks(2, act) == [0, 0]
    assert not (tmp_path / "c").exists()
    found = from_meter(Size(1, 2), (tmp_path / "m").read_text(), 2)
    assert found.effective_batch == 4.0
    assert found.exchange_s > 0 and found.exchange_bytes > 500 and found.data_s > 0
    assert (found.processes, found.device) == (2, "cpu")


def test_the_effective_batch_of_the_job_wins(tmp_path, monkeypatch):
    """Ten samples make a step, whatever the script says and however many ranks there are."""
    monkeypatch.setenv("GFLOW_EFFECTIVE_BATCH", "10")
    steps = []
    for world in (1, 2):
        folder = tmp_path / str(world)
        folder.mkdir()

        def act(rank: int, folder: Path = folder) -> None:
            train(folder / "c", folder / f"said{rank}", batch=2)

        assert ranks(world, act) == [0] * world
        steps.append({line.split(".")[0] for line in (folder / "said0").read_text().splitlines()})
    assert steps[0] == steps[1] and len(steps[0]) == 9  # 26 samples, three epochs


@pytest.mark.parametrize(
    ("batch", "effective", "world", "said"),
    [
        (32, 256, 4, "effective batch 256 = 4 processes x 32 samples x 2 batches"),
        (32, 128, 4, "effective batch 128 = 4 processes x 32 samples"),
        (32, 64, 4, "effective batch 64 = 4 processes x 16 samples"),
        (32, 100, 2, "effective batch 100 of at most 2 processes x 32 samples x 2 batches"),
    ],
)
def test_step_description(batch, effective, world, said):
    loader = Loader(range(999), batch, effective, seed=0, world=world, rank=0, shuffle=True, drop_last=False)
    assert loader.made_of() == said


@pytest.mark.slow
def test_scale_on_one_two_and_four_processes(box: Box) -> None:
    """The issue's own: a real training at three sizes on CPUs, with a picture."""
    done = box.run(
        "gflow", "scale", "--direct", "--processes", "1,2,4", "--seconds", "1", "--json", "--plot", "s.png",
        "--", str(ROOT / "examples/cpu.py"), "--epochs", "100000", timeout_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["measured"]["size"]["each"] for row in found["rows"]] == [1, 2, 4]
    assert all(row["measured"]["samples_per_s"] > 0 for row in found["rows"])
    assert found["kind"] == "weak"
    assert (box.work / "s.png").read_bytes().startswith(b"\x89PNG")
    assert not (box.work / "checkpoints").exists()
