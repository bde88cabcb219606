#!/usr/bin/env python3
"""gflow memory and gjob profile on a real NVIDIA GPU: one training run, looked at while it runs.

    tests/gpu/pack 3.12                        where there is a network
    python3 tests/gpu/profile_run.py           on the GPU machine, under a minute

Needs PyTorch. Prints what the commands print, a line for each check, and exits with 1 if one fails. Leaves
nothing running. `--mock` tries this script itself on the CPU, with the stand-in for NVML of tests/gpu_mock.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / ".carry/wheels")]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:3], os.environ.get("PYTHONPATH", "")])

from tests.harness import Box, wait_until  # noqa: E402

STEPS = 5
TRAIN = """
import sys, torch
from torch import nn
from gflow.train import Run
device = sys.argv[1]
width, batch = (2048, 64) if device == "cuda" else (64, 4)
torch.set_num_threads(2)
with Run(device=device, precision="bf16" if device == "cuda" else "fp32") as run:
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    model = run.model(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False))
    run.optimizer(torch.optim.AdamW(model.parameters(), 1e-4))
    data = torch.randn(4096, 64, width)
    for samples in run.batches(run.loader(data, batch), 1000):
        with run.autocast():
            loss = model(samples).float().square().mean()
        run.backward(loss)
        run.log(loss)
"""
COST = """
import os, time, torch
from gflow.ml.train.step_profiler import StepProfiler
one = StepProfiler(os.path.expanduser("~/none"), torch.device("cpu"))
began = time.perf_counter()
for step in range(1_000_000):
    one.step(step, time.monotonic())
print(f"{(time.perf_counter() - began) * 1000:.0f}")
"""
begun = time.monotonic()
failures: list[str] = []


class GpuBox(Box):
    """A box whose daemon and jobs see the real GPU, and whose programs need no installation."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.env = {**os.environ, **self.env}
        self.env["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        self.env["GFLOW_LEASE_DIR"] = str(root / "leases")

    def run(self, *words: str, **more: Any) -> Any:
        command = [sys.executable, "-m", "gflow", *words]
        return subprocess.run(command, env=self.env, cwd=self.work, capture_output=True, text=True,
                              timeout=60, stdin=subprocess.DEVNULL)  # fmt: skip


def check(what: str, holds: bool, detail: object = "") -> None:
    if not holds:
        failures.append(what)
    print(f"[{time.monotonic() - begun:5.1f} s] {'PASS' if holds else 'FAIL'} {what}: {detail}", flush=True)


def shown(text: str) -> str:
    print("".join(f"    {line}\n" for line in text.splitlines()))
    return text


def step_of(box: Box, job: int) -> int:
    return int((box.job(job)["progress"] or {"step": 0})["step"])


def look_at_memory(box: Box, job: int) -> None:
    """gflow memory, its JSON, and three samples of the watch."""

    def used() -> dict[str, Any] | None:
        gpus = json.loads(box.ok("gflow", "memory", "--json"))["gpus"]
        mine = [one for gpu in gpus for one in gpu["processes"] if one["job_id"] == job and one["pid"]]
        return gpus[0] if mine and mine[0]["memory_mib"] > 500 else None

    gpu = wait_until(used, 30, "the memory of the job")
    shown(box.ok("gflow", "memory"))
    (mine,) = [one for one in gpu["processes"] if one["job_id"] == job]
    check("process of the job", mine["is_job"] and mine["job_name"] == "train.py", mine)
    sums = sum(one["memory_mib"] or 0 for one in gpu["processes"]) + gpu["other_mib"]
    whole = gpu["used_mib"] + gpu["free_mib"]
    check(
        "processes and rest are the used memory", abs(sums - gpu["used_mib"]) <= 64, (sums, gpu["used_mib"])
    )
    check("used and free are the whole memory", whole == gpu["memory_mib"], f"{gpu['memory_mib']} MiB")
    check(
        "peak covers the memory now",
        (mine["job_peak_mib"] or 0) >= mine["memory_mib"] - 64,
        mine["job_peak_mib"],
    )
    check("GPU of an exclusive job offers nothing", gpu["offer"]["memory_mib"] == 0, gpu["offer"]["reason"])
    lines = box.ok("gflow", "memory", "watch", "--json", "-n", "1", "-c", "3").splitlines()
    traced = [json.loads(line)["gpus"][0]["processes"][0] for line in lines]
    grown = [one["growth_mib"] for one in traced]
    check("watch prints a line per sample", len(lines) == 3 and grown[0] == 0, f"growth {grown} MiB")


def look_at_profile(box: Box, job: int, *, on_gpu: bool) -> None:
    """gjob profile with a snapshot: figures, files, and a run that goes on."""
    before, began = step_of(box, job), time.monotonic()
    found = json.loads(box.ok("gjob", "profile", str(job), "--steps", str(STEPS), "--memory", "--json"))
    took = time.monotonic() - began
    check(
        "profile",
        found["steps"] == STEPS and found["first_step"] > before,
        f"{took:.1f} s, from step {before}",
    )
    files = {name: path and os.path.getsize(path) for name, path in found["files"].items()}
    check("files", bool(files["trace"] and files["operators"]), files)
    check("recorded time", 0 < found["seconds"] < took, f"{1000 * found['seconds'] / STEPS:.1f} ms per step")
    check("wait for data is known", 0 < (found["data_loading"] or 0) < 1, found["data_loading"])
    if on_gpu:
        check("GPU busy", 0.05 < (found["gpu_busy"] or 0) <= 1, found["gpu_busy"])
        names = [one["name"] for one in found["by_time"]]
        check("operators by GPU time", "aten::mm" in names or "aten::addmm" in names, names[:4])
        spent = sum(one["gpu_us"] for one in found["kernels"]) / 1e6
        check("kernels", 0 < spent <= 1.1 * found["seconds"], f"{spent:.3f} s in the longest kernels")
        memory = found["memory"]
        check("allocator", 0 < memory["allocated"] <= memory["peak_reserved"], memory)
        with open(found["files"]["memory_snapshot"], "rb") as file:
            snapshot = pickle.load(file)
        traces = sum(map(len, snapshot["device_traces"]))
        check("memory snapshot", bool(snapshot["segments"]) and traces > 0, f"{traces} entries")
    page = shown(box.ok("gjob", "profile", str(job), "--steps", "2"))
    check("page", "per step" in page and "OPERATOR BY MEMORY" in page)
    after = step_of(box, job)
    wait_until(lambda: step_of(box, job) > after + 1, 30, "further steps")
    left = sorted(path.name for path in (box.data / "profiles").iterdir())
    check("only results are left", len(left) == 2 and all("-step" in name for name in left), left)
    check("run was not disturbed", "gflow: no profile" not in box.text_of(job), box.text_of(job)[-200:])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mock", action="store_true", help="try the script itself, without a GPU")
    is_mock = parser.parse_args().mock
    with tempfile.TemporaryDirectory(prefix="gflow-gpu-") as folder:
        box = GpuBox(Path(folder))
        (box.work / "train.py").write_text(TRAIN)
        mock = _mock(Path(folder), box) if is_mock else None
        try:
            box.up("--cpus", "8")
            job = box.submit("--gpus", "1", sys.executable, "train.py", "cpu" if is_mock else "cuda")
            cost = _cost(box)
            wait_until(lambda: step_of(box, job) > 3, 60, f"steps: {box.text_of(job)[-800:]}")
            if mock is not None:
                record = (box.data / f"run/{job}.1").read_text()
                mock[0].run(int(record.partition("\njob ")[2].split()[2]), 5000)
            look_at_memory(box, job)
            look_at_profile(box, job, on_gpu=not is_mock)
            print(f"    the look for requests costs {cost} ns per step, with the call of the clock")
        except Exception as error:
            check("no error", False, f"{error!r}"[:800])
        finally:
            if failures:
                print(f"    the daemon's log: {box.log()[-1500:]}")
            box.run("gflowd", "down", "--kill-jobs")
            box.clean_up()
    print(f"\n{len(failures)} failed, {time.monotonic() - begun:.0f} s")
    return 1 if failures else 0


def _cost(box: Box) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COST], env=box.env, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() or done.stderr[-200:]


def _mock(folder: Path, box: Box) -> Any:
    from tests.gpu_mock import MockGpus

    gpus = MockGpus(folder, 1, name="NVIDIA H200")
    box.env |= gpus.env
    return gpus


if __name__ == "__main__":
    sys.exit(main())
