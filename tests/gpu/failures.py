#!/usr/bin/env python3
"""`gjob why` of jobs that fail on a real NVIDIA GPU: what was expected, what it names, whether that is right.

    tests/gpu/pack 3.12                   where there is a network
    python3 tests/gpu/failures.py         on the GPU machine; about two minutes

Each program fails as programs do: it lacks memory, in one piece or in fragments, beside another process, or
in `gflow.train`; its kernels write to wild addresses, or assert. Needs PyTorch. Changes nothing of the card.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / ".carry/wheels")]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:3], os.environ.get("PYTHONPATH", "")])
GIB = 1 << 30
MINUTES = 3.0


# ---------------------------------------------------------------- programs that fail


def oom() -> None:
    """Fills the GPU with tensors."""
    import torch

    kept = []
    while True:
        kept.append(torch.empty(4 * GIB, dtype=torch.uint8, device="cuda"))


def fragments() -> None:
    """Leaves only small holes in the memory that PyTorch has, and asks for a piece larger than each."""
    import torch

    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(20 * GIB / total)
    # Each gets a segment of 256 MiB. A tensor of 140 MiB then keeps it from being returned to the driver, and
    # the rest is too small for the next one.
    kept = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(78)]
    for at in range(len(kept)):
        kept[at] = None
        kept[at] = torch.empty(140 << 20, dtype=torch.uint8, device="cuda")
    torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")


def train_oom() -> None:
    """A batch of `gflow.train` that is far too large."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from gflow import train

    run = train.Run()
    model = run.model(nn.Sequential(*(nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(24))))
    run.optimizer(torch.optim.AdamW(model.parameters()))
    # Each of the 24 layers keeps its inputs: 16 GiB for a batch of 4096.
    data = TensorDataset(torch.zeros(1, 1, 1).expand(1 << 13, 256, 4096))
    for (inputs,) in run.batches(run.loader(data, 1 << 12), epochs=1):
        run.backward(model(inputs).square().mean())


def beside() -> None:
    """Another process of the job holds most of the GPU."""
    import torch

    hold = "import torch, time; kept = torch.empty(110 << 30, dtype=torch.uint8, device='cuda')"
    words = [sys.executable, "-c", f"{hold}; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            torch.empty(40 * GIB, dtype=torch.uint8, device="cuda")
        finally:
            other.kill()


def assertion() -> None:
    """An index beyond the rows of an embedding."""
    import torch

    table = torch.nn.Embedding(100, 8).cuda()
    print(table(torch.tensor([100_000], device="cuda")).sum().item())


def label() -> None:
    """A label that is not a class."""
    import torch

    torch.nn.functional.cross_entropy(
        torch.randn(4, 10, device="cuda"), torch.tensor([1, 2, 3, 12]).cuda()
    ).item()


# Writes to an address that is not mapped.
WILD = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry wild() {
    .reg .u64 %place;
    .reg .u32 %value;
    mov.u64 %place, 4096;
    mov.u32 %value, 1;
    st.global.u32 [%place], %value;
    ret;
}
"""


def _launch_wild() -> Any:
    """Load and start the kernel in PyTorch's context."""
    import torch

    torch.zeros(1, device="cuda")
    lib = ctypes.CDLL("libcuda.so.1")
    module, function, nothing = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.cuModuleLoadData(ctypes.byref(module), WILD) == 0
    assert lib.cuModuleGetFunction(ctypes.byref(function), module, b"wild") == 0
    assert lib.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nothing, nothing, nothing) == 0
    return lib


def wild() -> None:
    """A custom kernel with a wild pointer; PyTorch reports it."""
    import torch

    _launch_wild()
    torch.cuda.synchronize()


def silent() -> None:
    """The same in a program that reports nothing: only the driver's Xid tells."""
    lib = _launch_wild()
    if lib.cuCtxSynchronize():
        os._exit(1)


def devices() -> None:
    """A GPU that the job was not given."""
    import torch

    torch.zeros(1, device="cuda:7")


# ---------------------------------------------------------------- expected, named, right


class Case(NamedTuple):
    """A program, the causes that are right, and what else its diagnosis must have."""

    program: Callable[[], None]
    causes: tuple[str, ...]
    also: Callable[[dict], bool] = lambda first: True


def _advises(text: str) -> Callable[[dict], bool]:
    return lambda first: any(text in line for line in first["advice"])


def _has_xid(first: dict) -> bool:
    return any("Xid" in fact["text"] for fact in [first["evidence"], *first["support"]] if fact)


CASES = (
    Case(oom, ("cuda-oom",), lambda first: first["figures"]["total_mib"] > 0),
    Case(fragments, ("cuda-oom",), _advises("expandable_segments")),
    Case(train_oom, ("cuda-oom",), _advises("depends on the batch of")),
    Case(beside, ("cuda-oom",), _advises("other processes")),
    Case(assertion, ("device-assert",)),
    Case(label, ("label-range", "device-assert")),
    Case(wild, ("illegal-address",), _has_xid),
    Case(silent, ("illegal-address",), _has_xid),
    Case(devices, ("visible-devices",)),
)


def box_of(folder: Path) -> Any:
    """A box whose daemon and jobs see the GPU, and whose programs need no installation."""
    from tests.harness import Box

    class GpuBox(Box):
        def run(self, *words: str, **more: Any) -> Any:
            command = [sys.executable, "-m", "gflow", *words]
            return subprocess.run(
                command, env=self.env, cwd=self.work, capture_output=True, text=True, timeout=60,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    box = GpuBox(folder)
    box.env = {**os.environ, **box.env, "GFLOW_LEASE_DIR": str(folder / "leases")}
    box.env["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    return box


def explain(box: Any, number: int) -> dict:
    found: dict = json.loads(box.ok("gjob", "why", "--json", str(number)))
    return found


def judge(box: Any, case: Case) -> bool:
    """Run a program as a job, and print a line about its diagnosis."""
    name = case.program.__name__
    number = box.submit("--gpus", "1", sys.executable, __file__, name)
    box.finished(number, 90)
    found, until = explain(box, number), time.monotonic() + (6 if case.also is _has_xid else 0)
    while not found["end"]["gpu_faults"] and time.monotonic() < until:  # the driver is polled every second
        time.sleep(0.5)
        found = explain(box, number)
    first = found["findings"][0] if found["findings"] else {}
    is_right = found["cause"] in case.causes and case.also(first)
    verdict = "right" if is_right else "WRONG"
    print(f"{name:12}{' or '.join(case.causes):28}{found['cause'] or 'unknown':18}{verdict}")
    print("".join(f"      {line}\n" for line in box.ok("gjob", "why", str(number)).splitlines()), flush=True)
    if not is_right:
        print(f"      {found}\n      {box.text_of(number)[-1500:]}")
    return is_right


def main() -> int:
    begun, right = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="gflow-failures-") as folder:
        box = box_of(Path(folder))
        try:
            box.up("--cpus", "16")
            print(f"{'program':12}{'expected':28}{'named':18}right?")
            for case in CASES:
                if time.monotonic() - begun > MINUTES * 60 - 20:
                    print(f"{case.program.__name__:12}skipped: no time left")
                    continue
                right += judge(box, case)
        finally:
            box.run("gflowd", "down", "--kill-jobs")
            box.clean_up()
    print(f"{right} of {len(CASES)} right, {time.monotonic() - begun:.0f} s")
    return 0 if right == len(CASES) else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        globals()[sys.argv[1]]()
    else:
        sys.exit(main())
