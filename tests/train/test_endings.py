"""How a run ends: the exit code on TERM, Ctrl-C and errors, and what is saved by then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from gflow.ml.train.checkpoint.checkpoint_dir import verify  # noqa: E402
from gflow.train import Run  # noqa: E402
from tests.harness import wait_until  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402
from tests.train.small import net  # noqa: E402


def plain_loop(folder, number: int, times: int = 1) -> None:
    """A loop without `with` that gets a signal in its third step; the program would go on after it."""
    run = Run(folder, device="cpu")
    model = run.model(net())
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    run.resume()
    for inputs in run.batches(run.loader(torch.randn(16, 6), 2)):
        run.backward(model(inputs).sum())
        for _ in range(times if run.place.step == 2 else 0):
            os.kill(os.getpid(), number)


def own_loop(folder) -> None:
    with Run(folder, device="cpu") as run:
        while not run.should_stop:
            run.place.step += 1
            if run.place.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
        run.save(wait=True)


def test_exit_codes_and_last_checkpoints(tmp_path, capfd):
    os.environ.pop("WORLD_SIZE", None)
    assert ranks(1, lambda _: plain_loop(tmp_path / "term", signal.SIGTERM)) == [75]
    assert verify(str(tmp_path / "term/latest"))["step"] == 3
    assert ranks(1, lambda _: plain_loop(tmp_path / "int", signal.SIGINT)) == [75]
    assert verify(str(tmp_path / "int/latest"))["step"] == 3
    said = capfd.readouterr().err
    assert "press again to end at once" in said and "stopped at step 3 (Ctrl-C)" in said
    assert ranks(1, lambda _: plain_loop(tmp_path / "twice", signal.SIGINT, 2)) == [99]
    assert "KeyboardInterrupt" in capfd.readouterr().err
    assert ranks(1, lambda _: own_loop(tmp_path / "own")) == [75]
    assert verify(str(tmp_path / "own/latest"))["step"] == 4


def test_ctrl_c_is_caught_only_within_the_loop_of_a_run_that_saves(tmp_path):
    default = signal.getsignal(signal.SIGINT)
    found = []
    for folder in (None, tmp_path):
        run = Run(folder, device="cpu")
        for _ in run.batches(run.loader(torch.randn(2, 6), 2)):
            found.append(signal.getsignal(signal.SIGINT) is default)
        assert signal.getsignal(signal.SIGINT) is default
        run.close()
    assert found == [True, False]


BOOM = """
import sys, torch
from torch import nn
from gflow import train
torch.set_num_threads(1)
with train.Run("checkpoints", device="cpu", every_steps=1) as run:
    model = run.model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    for at, x in enumerate(run.batches(run.loader(torch.randn(64, 4), 2))):
        run.backward(model(x).sum())
        if at == 5 and run.ranks.rank == 1:
            raise ValueError("boom")
"""


def test_exception_in_one_rank_ends_with_code_1(tmp_path):
    (tmp_path / "boom.py").write_text(BOOM)
    launched = launch(tmp_path, "boom.py")
    said = launched.communicate()[0]
    assert "ValueError: boom" in said and "terminate called" not in said
    assert launched.returncode == 1
    assert "find_unused_parameters" not in said


def launch(folder, script):
    """Two ranks of a script, in a session of their own."""
    return subprocess.Popen(
        [sys.executable, "-m", "gflow", "gflow", "launch", "--processes", "2", script],
        cwd=folder,
        env=os.environ | {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


SLOW = """
import time, torch
from torch import nn
from gflow import train
torch.set_num_threads(1)
with train.Run("checkpoints", device="cpu") as run:
    model = run.model(nn.Linear(4, 1))
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    for x in run.batches(run.loader(torch.randn(40000, 4), 2)):
        run.backward(model(x).sum())
        time.sleep(0.05)
        if run.place.step == 2:
            open(f"ready-{run.ranks.rank}", "w").close()
"""


def test_ctrl_c_under_launch_saves_without_tracebacks(tmp_path):
    """A terminal sends the signal to the launcher and to all ranks."""
    (tmp_path / "slow.py").write_text(SLOW)
    launched = launch(tmp_path, "slow.py")
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, 120)
    os.killpg(launched.pid, signal.SIGINT)
    said = launched.communicate(timeout=120)[0]
    assert launched.returncode == 75, said
    assert said.count("press again to end at once") == 1 and "Traceback" not in said
    assert verify(str(tmp_path / "checkpoints/latest"))["world"] == 2
