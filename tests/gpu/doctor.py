#!/usr/bin/env python3
"""`gflow doctor` on a real GPU: its pages, its figures within plausible bounds, and GPUs that are in use.

tests/gpu/pack 3.12                 where there is a network
python3 tests/gpu/doctor.py         on the GPU machine; a minute at most

Prints `gflow doctor` and `gflow doctor --gpu` as text and JSON, then what was checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / ".carry/wheels")]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:3], os.environ.get("PYTHONPATH", "")])

from gflow.targets.local.gpu_leases import holder_of  # noqa: E402
from tests.harness import Box, wait_until  # noqa: E402

# Plausible shares of the expected figures. A copy over PCIe may share the link with other machines.
PLAUSIBLE = {"bf16": (0.5, 1.05), "fp16": (0.3, 1.05), "fp32": (0.5, 1.1), "memory": (0.6, 1.05),
             "upload": (0.3, 1.02), "download": (0.3, 1.02), "peer": (0.3, 1.05),
             "all_reduce": (0.3, 1.2)}  # fmt: skip
HOLD = "import torch, time; x = torch.ones(1, device='cuda'); print('up', flush=True); time.sleep(60)"
MISUSE = "env CUDA_VISIBLE_DEVICES=7,8 sleep 60; true"
failures: list[str] = []
begun = time.monotonic()


class GpuBox(Box):
    """A box whose daemon and jobs see the real GPU, and whose programs need no installation."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.env = {**os.environ, **self.env}
        self.env["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        self.env["GFLOW_LEASE_DIR"] = str(root / "leases")

    def run(self, *words, **more):
        command = [sys.executable, "-m", "gflow", *words]
        return subprocess.run(command, env=self.env, cwd=self.work, capture_output=True, text=True,
                              timeout=60, stdin=subprocess.DEVNULL)  # fmt: skip


def check(what: str, is_good: bool, detail: str = "") -> None:
    if not is_good:
        failures.append(what)
    print(f"[{time.monotonic() - begun:5.1f} s] {'PASS' if is_good else 'FAIL'} {what}: {detail}", flush=True)


def doctor(box: GpuBox, *words: str) -> tuple[subprocess.CompletedProcess, float]:
    start = time.monotonic()
    done = box.run("gflow", "doctor", *words)
    took = time.monotonic() - start
    print(f"$ gflow doctor {' '.join(words)}    ({took:.2f} s, exit code {done.returncode})")
    print(f"{done.stdout}{done.stderr}", flush=True)
    return done, took


def machine(box: GpuBox) -> None:
    done, took = doctor(box)
    check("doctor in time", took <= 3, f"{took:.2f} s")
    check("doctor without a traceback", done.returncode in (0, 1) and not done.stderr)
    done, took = doctor(box, "--json")
    names = {one["name"] for one in json.loads(done.stdout)["checks"]}
    is_judged = "driver" in names and any(name.startswith("torch") for name in names)
    check("driver, GPU and torch are judged", is_judged, str(sorted(names)))


def self_test(box: GpuBox) -> None:
    done, took = doctor(box, "--gpu")
    check("self-test ends", done.returncode in (0, 1) and "matrix product" in done.stdout, f"{took:.1f} s")
    done, took = doctor(box, "--gpu", "--json", "--quiet")
    found = json.loads(done.stdout)["self_test"]
    gpus = {gpu for figure in found["figures"] for gpu in figure["gpus"]}
    check(
        "15 s per GPU",
        found["seconds"] <= 15 * max(1, len(gpus)) + 5,
        f"{found['seconds']} s, {len(gpus)} GPU(s)",
    )
    for figure in found["figures"]:
        low, high = PLAUSIBLE[figure["name"]]
        share = figure["share"]
        is_good = not figure["error"] and (share is None or low <= share <= high)
        check(f"{figure['name']} on {figure['gpus']}", is_good,
              f"{figure['value']} {figure['unit']} of {figure['expected']}: {share}")  # fmt: skip


def in_use(box: GpuBox) -> None:
    """A GPU with a job is refused, and the environment of the job is read."""
    job = box.submit("--gpus", "1", sys.executable, "-c", HOLD)
    wait_until(lambda: "up" in box.text_of(job), 30, "the job to use its GPU")
    done, _ = doctor(box, "--gpu", "0")
    check(
        "GPU of a job is refused",
        done.returncode == 1 and f"job {job} has it" in done.stderr,
        done.stderr.strip(),
    )
    doctor(box, "--job", str(job))
    box.ok("gcancel", str(job))
    box.finished(job, 30)
    wrong = box.submit("--gpus", "1", "bash", "-c", MISUSE)
    seen = "has CUDA_VISIBLE_DEVICES=7,8"
    wait_until(lambda: seen in box.run("gflow", "doctor", "--job", str(wrong)).stdout, 20, "the misuse")
    done, _ = doctor(box, "--job", str(wrong))
    check(
        "misuse of CUDA_VISIBLE_DEVICES is found",
        done.returncode == 1 and seen in done.stdout,
    )
    box.ok("gcancel", str(wrong))
    box.finished(wrong, 30)


def later_job(box: GpuBox) -> None:
    """A job that comes while its GPU is measured starts afterwards."""
    environ = box.env
    command = [sys.executable, "-m", "gflow", "gflow", "doctor", "--gpu", "--quiet"]
    test = subprocess.Popen(command, env=environ, cwd=box.work, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        lease = f"{environ['GFLOW_LEASE_DIR']}/{box.api('GET', '/info')[1]['gpus'][0]['uuid']}"
        wait_until(lambda: holder_of(lease) is not None, 20, "the self-test to take its GPUs")
        job = box.submit("--gpus", "1", "true")
        time.sleep(1)
        waiting = box.job(job)
        is_running = test.poll() is None
        test.wait(60)
        box.finished(job, 30)
        check(
            "job waits while its GPU is measured",
            is_running and waiting["state"] == "Queued",
            str(waiting["reason"]),
        )
    finally:
        test.kill()
        test.wait()


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="gflow-doctor-") as folder:
        box = GpuBox(Path(folder))
        try:
            machine(box)
            self_test(box)
            box.up("--cpus", "16")
            in_use(box)
            later_job(box)
        finally:
            box.run("gflowd", "down", "--kill-jobs")
            box.clean_up()
    print(f"\n{len(failures)} failed, {time.monotonic() - begun:.0f} s: {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
