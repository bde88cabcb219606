#!/usr/bin/env python3
"""Device isolation on a real NVIDIA GPU: in system mode the kernel refuses a card that a job does not have.

    tests/gpu/pack 3.12                    where there is a network
    python3 tests/gpu/isolation.py         on the GPU machine, as root; a minute and a half at most

Makes three users and removes them again. Needs PyTorch, the native shim and control groups of version 2.
Prints a line for each check, and exits with 1 if one fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / ".carry/wheels")]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:3], os.environ.get("PYTHONPATH", "")])

from tests.harness import Box, wait_until  # noqa: E402
from tests.system import System, system  # noqa: E402

begun = time.monotonic()
failures: list[str] = []

# What a program can do with the card: each value is an error or `True`.
PROBE = """
import ctypes, errno, json, os, subprocess, sys, time
def try_open(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno]
    return True
found = {name: try_open("/dev/" + name) for name in ("nvidia0", "nvidiactl", "nvidia-uvm")}
cuda = ctypes.CDLL("libcuda.so.1")
found["cuInit"] = cuda.cuInit(0)
import torch
def multiply():
    ones = torch.ones(64, 64, device="cuda")
    return (ones @ ones).sum().item() == 64 ** 3
found["torch"] = torch.cuda.is_available() and multiply()
smi = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
found["nvidia-smi"] = smi.returncode == 0 and "H" in smi.stdout
print(json.dumps(found), flush=True)
if len(sys.argv) > 1:
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.1)
    found["torch"] = multiply()
    print(json.dumps(found), flush=True)
"""
FILES = ("nvidia0", "nvidiactl", "nvidia-uvm")
GRANTED = dict.fromkeys(FILES, True) | {"cuInit": 0, "torch": True, "nvidia-smi": True}


def check(what: str, is_good: bool, detail: object = "") -> None:
    if not is_good:
        failures.append(what)
    print(f"[{time.monotonic() - begun:5.1f} s] {'PASS' if is_good else 'FAIL'} {what}: {detail}", flush=True)


def use_checkout(box: Box) -> None:
    """Commands of this box run from the checkout: nothing is installed on the GPU machine."""
    box.env = {**os.environ, **box.env}
    box.env["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '/usr/bin:/bin')}"

    def run(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
        command = [*box.prefix, sys.executable, "-m", "gflow", *words]
        return subprocess.run(
            command,
            env=box.env,
            cwd=box.work,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )

    box.run = run  # type: ignore[method-assign]


def up(machine: System, **env: str) -> None:
    Box.up(
        machine.box, "--system", "--cpus", "8", env={"GFLOW_LEASE_DIR": str(machine.root / "leases"), **env}
    )


def last_line(machine: System, box: Box, job: int) -> dict:
    text = machine.log_of(box, job)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"log": text[-400:]}


def probe(machine: System, box: Box, *options: str) -> dict:
    job = box.submit(*options, sys.executable, "-c", PROBE)
    machine.box.finished(job, 60)
    return last_line(machine, box, job)


def is_refused(found: dict) -> bool:
    is_closed = all(found.get(name) == "EPERM" for name in FILES)
    return is_closed and found["cuInit"] != 0 and not found["torch"] and not found["nvidia-smi"]


def main() -> int:
    with system() as machine:
        for box in (machine.box, *machine.persons):
            use_checkout(box)
        up(machine)
        print("".join(f"    {line}\n" for line in machine.box.ok("ginfo", "-l").splitlines()))
        found = probe(machine, machine.ann)
        check("CPU job: EPERM; raw CUDA, torch and nvidia-smi see no GPU", is_refused(found), found)
        go = machine.root / "go"
        holder = machine.ann.submit("--gpus", "1", sys.executable, "-c", PROBE, str(go))
        wait_until(lambda: "{" in machine.log_of(machine.ann, holder), 60, "the job with the card")
        found = last_line(machine, machine.ann, holder)
        check("job with the card: files, raw CUDA, torch, nvidia-smi work", found == GRANTED, found)
        found = probe(machine, machine.bob)
        check("another user's job meanwhile: EPERM", is_refused(found), found)
        machine.box.kill9()
        up(machine)
        found = probe(machine, machine.bob)
        check("another user's job after kill -9 of the daemon: EPERM", is_refused(found), found)
        go.touch()
        end = machine.box.finished(holder, 30)
        lines = machine.log_of(machine.ann, holder).count('"torch": true')
        check(
            "job with the card used it before and after", end["exit_code"] == 0 and lines == 2, end["reason"]
        )
        machine.box.down()
        up(machine, GFLOW_GPU__MPS="true")
        shared = ("--gpus", "1", "--shared", "--gpu-memory", "8G")
        found = probe(machine, machine.ann, *shared)
        check("shared card under MPS: torch works", found.get("torch") is True, found)
        found = probe(machine, machine.bob)
        check("CPU job beside MPS: EPERM", is_refused(found), found)
        machine.box.run("gflowd", "down", "--kill-jobs", "--system")
    print(f"\n{len(failures)} failed, {time.monotonic() - begun:.0f} s: {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
