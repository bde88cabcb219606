"""A plan of `gflow plan` as the input of a run and of a launch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gflow.errors import UsageError  # noqa: E402
from gflow.train import Run  # noqa: E402

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = ["plan", "--params", "1.3B", "--on", "A100-40GB", "--precision", "bf16", "--seq", "1024"]
    done = subprocess.run([BIN / "gflow", *words, "--out", path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return path


def test_a_run_as_planned(plan, monkeypatch, capsys):
    from gflow.ml.fit import plan as planning

    found = planning.read(str(plan))
    run = Run.planned(str(plan), device="cpu", gradient_checkpointing=False)
    model = run.model(torch.nn.Linear(4, 1))
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    for batch in run.batches(run.loader(torch.ones(found.effective_batch * 2, 4))):
        with run.autocast():
            loss = model(batch).float().square().mean()
        run.backward(loss)
        assert len(batch) <= found.micro_batch
    assert run.place.step == 2 and run.effective_batch == found.effective_batch
    run.close()
    assert f"gflow: effective batch {found.effective_batch} = " in capsys.readouterr().err
    monkeypatch.setenv("GFLOW_PLAN", str(plan))
    Run.planned(device="cpu", gradient_checkpointing=False).close()


def test_invalid_plan_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("GFLOW_PLAN", raising=False)
    with pytest.raises(UsageError, match="there is no plan"):
        Run.planned(device="cpu")
    with pytest.raises(UsageError, match="cannot be read"):
        Run.planned(str(tmp_path / "none.json"))
    run = Run(device="cpu")
    with pytest.raises(UsageError, match="needs a batch size"):
        run.loader(torch.ones(4))
    run.close()


def test_launching_as_planned(plan, tmp_path):
    (tmp_path / "show.py").write_text("import os; print(os.environ['GFLOW_PLAN'], os.environ['WORLD_SIZE'])")
    done = subprocess.run(
        [BIN / "gflow", "launch", "--plan", plan, "--processes", "2", "show.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"{plan} 2\n", done.stderr
    refused = subprocess.run(
        [BIN / "gflow", "launch", "--plan", "show.py", "show.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert refused.returncode == 2 and "is not a plan" in refused.stderr
