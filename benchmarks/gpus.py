#!/usr/bin/env python3
"""What watching GPUs costs: 8 GPUs (a stand-in for NVIDIA's library), 100 jobs that share them.

    .venv/bin/python benchmarks/gpus.py [seconds]

CPU time of the daemon while nothing else happens, and the longest that it kept a caller waiting.
"""
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.gpu_mock import MockGpus  # noqa: E402
from tests.harness import Box, wait_until  # noqa: E402

GPUS, JOBS = 8, 100


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        gpus = MockGpus(Path(folder), GPUS)
        box = Box(Path(folder))
        box.flags = []
        try:
            box.up("--cpus", "1000", env=gpus.env | {"GFLOW_LEASE_DIR": f"{folder}/leases"})
            idle = cost(box, seconds / 2)
            request = box.job_request(["sleep", "9999"], gpus=1, shared=True, **{"gpu-memory": "5G"})
            for start in range(0, JOBS, 50):
                status, answer = box.api("POST", "/jobs", {"token": f"benchmark-{start}", "jobs": [request] * 50})
                assert status < 300, answer
            wait_until(lambda: sum(job["state"] == "Running" for job in box.jobs().values()) == JOBS, 60)
            for number, job in box.jobs().items():
                gpus[job["gpu_ids"][0]].run(pid_of(box, number), 3000)
            time.sleep(2)
            busy = cost(box, seconds)
            waits = sorted(latencies(box, seconds / 2))
            print(f"{GPUS} GPUs, no job: {idle:.2f} % of a core")
            print(f"{GPUS} GPUs, {JOBS} shared jobs: {busy:.2f} % of a core, {next(line for line in info(box) if 'watchdog' in line)}")
            print(f"a caller waited {waits[len(waits) // 2] * 1000:.2f} ms (median), {waits[-1] * 1000:.2f} ms (most of {len(waits)})")
        finally:
            box.clean_up()


def info(box: Box) -> list[str]:
    return box.api("GET", "/info")[1]["limits"]


def pid_of(box: Box, number: int) -> int:
    def found() -> int:
        path = box.data / f"run/{number}.1"
        text = path.read_text() if path.exists() else ""
        return next((int(line.split()[3]) for line in text.splitlines() if line.startswith("job ")), 0)

    return wait_until(found)


def cost(box: Box, seconds: float) -> float:
    before = cpu(box.daemon.pid)
    time.sleep(seconds)
    return (cpu(box.daemon.pid) - before) / seconds * 100


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def latencies(box: Box, seconds: float) -> list[float]:
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        box.api("GET", "/health")
        found.append(time.perf_counter() - start)
        time.sleep(0.01)
    return found


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20)
