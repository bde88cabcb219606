#!/usr/bin/env python3
"""Measure the cost of GPU monitoring: 8 GPUs (a mock of NVML) shared by 100 jobs.

    .venv/bin/python benchmarks/gpus.py [seconds]

Figures: CPU time of the otherwise idle daemon, longest turn of its loop, longest latency of a caller, and
the disk space of one week of samples.
"""

import asyncio
import json
import os
import signal
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
        report = Path(folder, "turns.json")
        box.program = [sys.executable, __file__, "daemon", str(report)]
        box.flags = []
        box.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        try:
            box.up("--cpus", "1000", env=gpus.env | {"GFLOW_LEASE_DIR": f"{folder}/leases"})
            idle = cost(box, seconds / 2)
            request = box.job_request(["sleep", "9999"], gpus=1, shared=True, **{"gpu-memory": "5G"})
            for start in range(0, JOBS, 50):
                status, answer = box.api(
                    "POST", "/jobs", {"token": f"benchmark-{start}", "jobs": [request] * 50}
                )
                assert status < 300, answer
            wait_until(lambda: sum(job["state"] == "Running" for job in box.jobs().values()) == JOBS, 60)
            for number, job in box.jobs().items():
                gpus[job["gpu_ids"][0]].run(pid_of(box, number), 3000)
            time.sleep(2)
            os.kill(box.daemon.pid, signal.SIGRTMIN)
            wait_until(report.exists)
            report.unlink()
            busy = cost(box, seconds)
            waits = sorted(latencies(box, seconds / 2))
            print(f"{GPUS} GPUs, no job: {idle:.2f} % of a core")
            print(
                f"{GPUS} GPUs, {JOBS} shared jobs: {busy:.2f} % of a core, {next(line for line in info(box) if 'watchdog' in line)}"
            )
            print(
                f"a caller waited {waits[len(waits) // 2] * 1000:.2f} ms (median), {waits[-1] * 1000:.2f} ms (most of {len(waits)})"
            )
            os.kill(box.daemon.pid, signal.SIGRTMIN)
            turns = json.loads(wait_until(lambda: report.exists() and report.read_text()))
            week(box, Path(folder))
            print(
                f"{turns['count']} turns of the loop: {turns['cpu']:.2f} ms of work in the longest, {turns['wall']:.2f} ms by the clock"
            )
            print(f"  of the watch's own: {turns['watch_cpu']:.2f} ms of work in the longest")
        finally:
            box.clean_up()


def week(box: Box, folder: Path) -> None:
    """A week of a full machine: 100 jobs at a time on 8 GPUs, each an hour long, written as the daemon writes them."""
    from gflow.daemon.monitors.gpu_samples import History, SampleRetention
    from gflow.gpu.census import Report
    from gflow.gpu.port import Card, Sample

    path, hours = folder / "week.db", 2
    history = History(path, SampleRetention(7, 365))
    for second in range(hours * 3600):
        first = second // 3600 * JOBS
        at = 1_800_000_000.0 + second
        sample = Sample(
            20480 + second % 97,
            second % 101,
            300 + second % 50,
            60 + second % 7,
            1200 + second % 300,
            2600,
            4,
        )
        card = Card(uuid="A", number=0, model="", memory_mib=81559, sample=sample)
        runs = {
            gpu: tuple(f"{100_000 + first + job}.1" for job in range(JOBS) if job % GPUS == gpu)
            for gpu in range(GPUS)
        }
        used = {run: {gpu: 5000 + second % 900} for gpu in runs for run in runs[gpu]}
        history.take(
            Report(cards=dict.fromkeys(range(GPUS), card), used=used),
            runs,
            dict.fromkeys(used, "0123456789abcdef"),
            at,
        )
    history.close(at)
    history._writer.join()
    size = sum(each.stat().st_size for each in folder.glob("week.db*"))
    print(
        f"a week of samples: {size / hours * 168 / 1e6:.0f} MB ({size / hours / 1e6:.2f} MB an hour, {hours} hours written)"
    )


def daemon(report: str) -> None:
    """Run a daemon that records the duration of its loop turns."""
    worst = {"count": 0, "cpu": 0.0, "wall": 0.0, "watch_cpu": 0.0}
    run = asyncio.Handle._run

    def timed(self) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        run(self)
        cpu, wall = (time.thread_time() - cpu) * 1000, (time.perf_counter() - wall) * 1000
        if "GpuWatch" in str(self._callback) if self._callback else False:
            worst["watch_cpu"] = max(worst["watch_cpu"], cpu)
        worst["count"] += 1
        worst["cpu"], worst["wall"] = max(worst["cpu"], cpu), max(worst["wall"], wall)

    asyncio.Handle._run = timed
    from gflow.cli.gflowd import run as gflowd

    def tell(*_: object) -> None:
        """Print the figures since the last call, which excludes start-up and shutdown."""
        text = json.dumps(worst)
        worst.update(count=0, cpu=0.0, wall=0.0, watch_cpu=0.0)
        Path(report).write_text(text)

    signal.signal(signal.SIGRTMIN, tell)
    sys.exit(gflowd(["run", *sys.argv[3:]]))


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
    if sys.argv[1:2] == ["daemon"]:
        daemon(sys.argv[2])
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20)
