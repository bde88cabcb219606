#!/usr/bin/env python3
"""What gflow asks on the nodes of a cluster, asked on a machine with a real GPU and a real NCCL.

    python3 tests/gpu/cluster.py

The step of `gjob usage` beside a process that keeps the GPU busy; then NCCL's own log: one rank alone, and
two ranks on the one GPU, which NCCL refuses, so that its warning must be shown. Needs PyTorch; a minute.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = str(ROOT / "src")
sys.path[:0] = [SRC, str(ROOT / ".carry/wheels")]

from gflow.ml.launch import nccl  # noqa: E402
from gflow.targets.slurm.commands import node_usage  # noqa: E402

BUSY = """
import time, torch
x = torch.randn(8192, 8192, device="cuda")
print("ready", flush=True)
end = time.time() + 30
while time.time() < end:
    x = (x @ x).tanh()
    torch.cuda.synchronize()
"""
REDUCE = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
x = torch.ones(1024, device="cuda") * (dist.get_rank() + 1)
dist.all_reduce(x)
print("sum", x[0].item(), flush=True)
dist.destroy_process_group()
"""


def usage() -> bool:
    job = {"SLURM_JOB_ID": "987001", "SLURMD_NODENAME": "here"}
    busy = subprocess.Popen(
        [sys.executable, "-c", BUSY], env=os.environ | job, stdout=subprocess.PIPE, text=True
    )
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        time.sleep(2)
        step = (
            os.environ | job | {"CUDA_VISIBLE_DEVICES": "0", "SLURM_CPUS_ON_NODE": "8", node_usage.MARK: "1"}
        )
        done = subprocess.run(["sh", "-c", node_usage.SCRIPT], env=step, capture_output=True, text=True)
    finally:
        busy.kill()
        busy.wait()
    print(done.stdout + done.stderr)
    (node,) = node_usage.parse_probe("".join(f"0: {line}\n" for line in done.stdout.splitlines()))
    print(node)
    (gpu,) = node.gpus
    return (
        node.processes >= 1 and node.memory_mib > 100 and (gpu.busy or 0) > 50 and (gpu.memory_mib or 0) > 500
    )


def talk(folder: str) -> bool:
    script = Path(folder) / "reduce.py"
    script.write_text(REDUCE)
    fine = True
    for ranks in (1, 2):
        logs = f"{folder}/logs{ranks}"
        words = ["-m", "gflow", "gflow", "launch", "--processes", str(ranks), "--logs", logs, str(script)]
        path = os.pathsep.join([SRC, str(ROOT / ".carry/wheels")])
        told = {"PYTHONPATH": path}
        if ranks == 1:  # one rank has no peer, so gflow does not ask NCCL for a log
            os.makedirs(logs)
            told |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{logs}/{nccl.FILES}"}
        done = subprocess.run(
            [sys.executable, *words], env=os.environ | told, capture_output=True, text=True, timeout=120
        )
        print(f"== {ranks} ranks: code {done.returncode}\n{done.stdout[-500:]}{done.stderr[-1500:]}")
        for log in glob.glob(f"{logs}/nccl-*"):
            print(f"-- {log}\n{Path(log).read_text()[:3000]}")
        seen = nccl.parse(nccl.read(logs))
        print(seen)
        fine = fine and (bool(seen.version) if ranks == 1 else "NCCL warned: " in done.stderr)
    return fine


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        results = {"gjob usage": usage(), "NCCL's log": talk(place)}
    print(results)
    sys.exit(0 if all(results.values()) else 1)
