"""Profiles on request: of a running job through `gjob profile`, and the parts of it in this process."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gflow.client.profile_trace import profile_view  # noqa: E402
from gflow.client.run_profile import Profile  # noqa: E402
from gflow.ml.train import profile_files as files  # noqa: E402
from gflow.ml.train.step_profiler import LOOK_S, StepProfiler  # noqa: E402
from tests.harness import BIN, Box, wait_until  # noqa: E402

SCRIPT = """
import os, time, torch
from torch import nn
from gflow.train import Run
torch.set_num_threads(1)
class Points(torch.utils.data.Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, at):
        time.sleep(0.02)
        return torch.randn(64)
with Run(device="cpu") as run:
    model = run.model(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    run.optimizer(torch.optim.AdamW(model.parameters(), 0.01))
    for batch in run.batches(run.loader(Points(), 4), 1):
        run.backward(model(batch).square().mean())
        time.sleep(0.1)
        while os.path.exists("pause"):
            time.sleep(0.01)
"""


def profiles(box: Box) -> list[Path]:
    return sorted((box.data / "profiles").iterdir())


def step_of(box: Box, job: int) -> int:
    return (box.job(job)["progress"] or {"step": 0})["step"]


def test_profile_of_a_running_job(box: Box) -> None:
    (box.work / "train.py").write_text(SCRIPT)
    box.up("--cpus", "4")
    job = box.submit(sys.executable, "train.py")
    wait_until(lambda: step_of(box, job), 120, "the first step")
    found = json.loads(box.ok("gjob", "profile", str(job), "--steps", "3", "--json", "-o", "trace.json"))
    assert found["steps"] == 3 and found["first_step"] > 1 and found["device"] == "CPU"
    assert found["seconds"] > 3 * 0.18 and found["gpu_busy"] is None
    assert 0.05 < found["data_loading"] < 0.95, "each step loads four samples of 20 ms, and sleeps 100 ms"
    assert "aten::addmm" in {one["name"] for one in found["by_time"]}
    assert found["by_memory"][0]["cpu_bytes"] > 0
    (folder,) = profiles(box)
    assert {path.name for path in folder.iterdir()} == {files.TRACE, files.TABLES, files.ANSWER}
    assert folder.name == f"{job}-step{found['first_step']}" and folder.stat().st_mode & 0o77 == 0
    assert "Operators by memory" in (folder / files.TABLES).read_text()
    trace = json.loads((box.work / "trace.json").read_text())
    assert trace == json.loads(gzip.decompress((folder / files.TRACE).read_bytes()))
    steps = [one for one in trace["traceEvents"] if str(one.get("name")).startswith("ProfilerStep#")]
    assert len(steps) == 3

    page = box.ok("gjob", "profile", str(job), "--steps", "1", "--memory")
    assert "waiting for data" in page and "OPERATOR BY CPU TIME" in page and "OPERATOR BY MEMORY" in page
    assert "there is no memory snapshot: the run does not use a GPU" in page
    assert len(profiles(box)) == 2

    _interrupted(box, job)
    _paused(box, job)
    assert "gflow: no profile" not in box.text_of(job)
    from_python = f"import gflow; print(gflow.Job({job}).profile(steps=1)['steps'])"
    assert box.run("python", "-c", from_python).stdout == "1\n"


def _interrupted(box: Box, job: int) -> None:
    """Ctrl-C withdraws the request; another command at the same time is refused."""
    words = [str(BIN / "gjob"), "profile", str(job), "--steps", "100"]
    asking = subprocess.Popen(words, env=box.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: [path for path in profiles(box) if (path / files.STATE).exists()])
    second = box.run("gjob", "profile", str(job))
    assert second.returncode == 1 and "another profile of job" in second.stderr
    asking.send_signal(signal.SIGINT)
    assert asking.wait(20) != 0 and b"Traceback" not in asking.stderr.read()  # type: ignore[union-attr]
    assert len(profiles(box)) == 2


def _paused(box: Box, job: int) -> None:
    """A run that ends no step: the command says so and leaves nothing behind; the run goes on."""
    (box.work / "pause").touch()
    refused = box.run("gjob", "profile", str(job), "--timeout", "1")
    assert refused.returncode == 1 and "did not end a step within 1 s" in refused.stderr
    assert len(profiles(box)) == 2
    before = step_of(box, job)
    (box.work / "pause").unlink()
    wait_until(lambda: step_of(box, job) > before + 1)


# ---------------------------------------------------------------- in this process


def asked(folder: Path, **request: Any) -> StepProfiler:
    folder.mkdir()
    files.write_json(str(folder), files.REQUEST, request)
    return StepProfiler(str(folder), torch.device("cpu"))


def work(profiler: StepProfiler, steps: int) -> None:
    for step in range(1, steps + 1):
        torch.ones(100) @ torch.ones(100)
        profiler.step(step, step)


def answer(folder: Path) -> dict[str, Any]:
    found = files.read_json(str(folder), files.ANSWER)
    assert found is not None
    return found


def test_steps_after_the_request_are_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "request"
    work(asked(folder, steps=2), 6)
    found = answer(folder)
    assert (found["first_step"], found["steps"], found["notes"]) == (3, 2, [])
    view = profile_view(Profile("1", str(folder), found))
    assert view["data_loading"] is None and view["by_time"][0]["share"] > 0


def test_run_that_ends_answers_with_the_steps_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "request"
    profiler = asked(folder, steps=50)
    work(profiler, 4)
    profiler.close()
    assert answer(folder)["notes"] == ["the run ended after 2 of 50 steps"]


def test_error_of_the_profiler_is_the_answer_and_not_the_end_of_the_run(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "request"
    profiler = asked(folder, steps=2)
    with torch.profiler.profile() as own:
        work(profiler, 4)
    assert answer(folder)["error"] == "RuntimeError: the script has a profiler of its own running"
    assert any(one.key == "aten::ones" for one in own.key_averages()), "the script's profiler is unharmed"
    assert "training goes on" in capsys.readouterr().err
    work(profiler, 3)


def test_withdrawn_request_is_dropped_and_the_next_one_answered(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "request"
    profiler = asked(folder, steps=50)
    work(profiler, 3)
    shutil.rmtree(folder)
    asked(folder, steps=1)
    work(profiler, 5)
    assert answer(folder)["steps"] == 1
    assert capsys.readouterr().err == ""


def test_look_for_requests_costs_less_than_a_stat_per_step(tmp_path: Path) -> None:
    profiler = StepProfiler(str(tmp_path / "none"), torch.device("cpu"))
    looks = 0

    def exists(path: str) -> bool:
        nonlocal looks
        looks += 1
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gflow.ml.train.step_profiler.os.path.exists", exists)
        for step in range(1000):  # a thousand steps per second
            profiler.step(step, step / 1000)
    assert looks <= 1 / LOOK_S + 1


def test_run_outside_of_a_job_takes_no_requests() -> None:
    assert files.request_folder({"HOME": "/home/ann"}) == ""
    folder = files.request_folder(
        {"HOME": "/home/ann", "GFLOW_JOB_ID": "42_3", "GFLOW_ATTEMPT": "2", "GFLOW_PROGRESS": "/run/x"}
    )
    assert folder.startswith("/home/ann/.local/share/gflow/profiles/42_3.2.")
    long = {"HOME": "/" + "x" * 600, "GFLOW_JOB_ID": "1", "GFLOW_ATTEMPT": "1", "GFLOW_PROGRESS": "/run/x"}
    assert files.request_folder(long) == ""
