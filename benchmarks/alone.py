"""Benchmark this daemon alone: does its cost grow with the rate of change, or with the queue?

    benchmarks/run alone            prints one line per question; --json FILE keeps them

Each question starts a fresh daemon on a database that `benchmarks.fill` made.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import NotOffered, cpu_seconds, marked, memory_mb, stamps, timed, wait_until
from benchmarks.ours import Ours

SIZES = (("identical jobs", 1), ("10k shapes of 200 people", 10_000))
LATE = 100
IDLE_S = 20
SETTLE_S = 20


class Alone(Ours):
    """The adapter, with a database filled beforehand."""

    name = "alone"
    env_more: dict[str, str] = {}

    def start_filled(self, *fill: str) -> float:
        """Seconds from `gflowd up` until it accepts requests."""
        self.stop()
        self.fresh(PATH=f"{self.bin}:/usr/local/bin:/usr/bin:/bin")
        self.env |= self.folders(
            HOME="home", XDG_CONFIG_HOME="config", XDG_DATA_HOME="data", XDG_RUNTIME_DIR="run"
        )
        self.env |= self.env_more
        self.flags = ["--cpus", "64", "--simulate-gpus", "8x80G"]
        if any(word.startswith("--users") for word in fill):
            self._serve_all_users()
        database = self.dir / "data/gflow/gflow.db"
        subprocess.run(
            [f"{self.bin}/python3", "-m", "benchmarks.fill", str(database), *fill], check=True, env=self.env
        )
        begin = time.perf_counter()
        self.restart()
        return time.perf_counter() - begin

    def _serve_all_users(self) -> None:
        """Jobs of several users need the system-wide daemon, which root starts."""
        if os.geteuid():
            raise NotOffered("only root runs jobs as others")
        machine = self.dir / "machine"
        data = machine / "var/lib/gflow"
        data.mkdir(parents=True)
        data.chmod(0o700)
        (self.dir / "data/gflow").symlink_to(data)
        self.env["GFLOW_SYSTEM_ROOT"] = str(machine)
        self.flags.append("--system")

    def rss_mb(self) -> float:
        """Of the daemon."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.daemon_pids()]
        return sum(int(text.split("VmRSS:")[1].split()[0]) for text in texts) / 1024


def bulk(system: Alone) -> dict[str, Any]:
    """10k jobs in one request, answered when they are on disk."""
    seconds = []
    for _ in range(5):
        system.start_filled()
        seconds.append(system.bulk(10_000, "true", "blocked"))
    return {"median_s": round(statistics.median(seconds), 3), "all_s": [round(s, 3) for s in seconds]}


def events(system: Alone) -> dict[str, Any]:
    """Submit, start and end of one more job that can run: latency, and the daemon's CPU for it."""
    found: dict[str, Any] = {}
    for label, shapes in SIZES:
        for waiting in (1_000, 100_000):
            system.start_filled(f"--waiting={waiting}", f"--shapes={min(shapes, waiting)}", "--users=200")
            found[f"{label}, {waiting:,} waiting"] = _late(system) | {"rss_mb": round(system.rss_mb())}
    return found


def _late(system: Alone) -> dict[str, float]:
    connection = system.connection()
    latencies = []
    daemon = system.daemon_pids()
    before = cpu_seconds(daemon)
    for number in range(LATE):
        path = system.work / f"late-{number}"
        begin = time.time_ns()
        system.post(connection, system.submission(f"date +%s%N > {path}", cpus=0))
        assert wait_until(lambda path=path: stamps(path), 10, 0.001)
        latencies.append((stamps(path)[0] - begin) / 1e6)
    status = wait_until(lambda: system.request("GET", "/status")["running"] == 1, 10)
    assert status
    used = cpu_seconds(daemon) - before
    return {
        "start_ms_median": round(statistics.median(latencies), 2),
        "start_ms_max": round(max(latencies), 2),
        "cpu_ms_per_job": round(used * 1000 / LATE, 2),
    }


def startup(system: Alone) -> dict[str, Any]:
    """Ready with 100k waiting and a million finished jobs on disk."""
    seconds = system.start_filled("--waiting=100000", "--shapes=10000", "--users=200", "--finished=1000000")
    again = []
    for _ in range(3):
        system.call([f"{system.bin}/gflowd", "down"])
        begin = time.perf_counter()
        system.restart()
        again.append(round(time.perf_counter() - begin, 2))
    return {"first_s": round(seconds, 2), "again_s": again, "rss_mb": round(system.rss_mb())}


def durable_submit(system: Alone) -> dict[str, Any]:
    """One submission at a time, beside the disk's own time for a synchronised write."""
    system.start_filled()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect((system.dir / "data/gflow/address").read_text().strip())
        ours = [_round_trip_ms(client, system.submission("true", hold=True)) for _ in range(300)]
    path = system.dir / "probe"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    disk = []
    for _ in range(300):
        begin = time.perf_counter()
        os.write(fd, b"x" * 4096)
        os.fdatasync(fd)
        disk.append((time.perf_counter() - begin) * 1e3)
    os.close(fd)
    return {
        "submit_ms_p50": round(statistics.median(ours), 3),
        "fsync_ms_p50": round(statistics.median(disk), 3),
    }


def _round_trip_ms(client: socket.socket, body: bytes) -> float:
    """One submission over an open socket, without an HTTP library's own time."""
    head = f"POST /jobs?parsable HTTP/1.1\r\nHost: gflow\r\nAccept: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    begin = time.perf_counter()
    client.sendall(head.encode() + body)
    answer = b""
    while not answer.endswith(b"\n") or b"\r\n\r\n" not in answer or answer.endswith(b"\r\n\r\n"):
        answer += client.recv(65536)
    taken = (time.perf_counter() - begin) * 1e3
    assert answer.startswith(b"HTTP/1.1 201"), answer
    return taken


def looking(system: Alone) -> dict[str, Any]:
    """Time of `gqueue` with many waiting jobs, and the latency of other requests during a listing."""
    found: dict[str, Any] = {}
    for waiting in (0, 10_000, 100_000):
        system.start_filled(f"--waiting={waiting}", "--shapes=10000", "--users=200", "--finished=20000")
        seconds = [timed([f"{system.bin}/gqueue"], system.env, system.work) for _ in range(10)]
        found[f"gqueue, {waiting:,} waiting"] = {
            "min_ms": round(min(seconds) * 1e3, 1),
            "median_ms": round(statistics.median(seconds) * 1e3, 1),
        }
    found["asked alone"] = _lag(system, [])
    for words in (
        ["gqueue"],
        ["gqueue", "-r", "name"],
        ["gqueue", "--json"],
        ["gqueue", "-a", "-n", "0"],
        ["gstats", "-a"],
    ):
        found[f"asked during {' '.join(words)}"] = _lag(system, words)
    return found


def _lag(system: Alone, words: list[str]) -> dict[str, float]:
    """How long a small question takes over an open connection while such a command runs five times."""
    running = None
    if words:
        line = f"for i in 1 2 3 4 5; do {system.bin}/{' '.join(words)} > /dev/null; done"
        running = subprocess.Popen(["sh", "-c", line], env=system.env)
    taken = []
    with socket.socket(socket.AF_UNIX) as client:
        client.connect((system.dir / "data/gflow/address").read_text().strip())
        end = time.monotonic() + 2
        while running.poll() is None if running else time.monotonic() < end:
            begin = time.perf_counter()
            client.sendall(b"GET /health HTTP/1.1\r\nHost: gflow\r\nAccept: text/plain\r\n\r\n")
            answer = b""
            while not answer.endswith(b"\r\n\r\nok\n"):
                answer += client.recv(65536)
            taken.append((time.perf_counter() - begin) * 1e3)
            time.sleep(0.002)
    taken.sort()
    return {
        "asked": len(taken),
        "p50_ms": round(statistics.median(taken), 2),
        "p99_ms": round(taken[int(0.99 * (len(taken) - 1))], 2),
        "max_ms": round(taken[-1], 2),
    }


def running(system: Alone) -> dict[str, Any]:
    """Running jobs: memory overhead of each, and CPU time of the daemon and all shims."""
    found = {}
    for shim in ("plain", "python"):
        system.env_more = {"GFLOW_SHIM": shim}
        quiet = _with_sleepers(system, 0)
        for count in (200, 500):
            system.start_filled()
            _sleepers(system, count)
            daemon, beside = system.daemon_pids(), _beside(system)
            before = cpu_seconds(daemon), cpu_seconds(beside)
            begin = time.perf_counter()
            time.sleep(IDLE_S)
            share = 100 / (time.perf_counter() - begin)
            found[f"{count} jobs, {shim} shims"] = {
                "pss_mb_per_job": round((memory_mb(beside) - quiet) / count, 3),
                "processes_per_job": round(len(beside) / count, 2),
                "daemon_cpu_percent": round((cpu_seconds(daemon) - before[0]) * share, 3),
                "shims_cpu_percent": round((cpu_seconds(beside) - before[1]) * share, 3),
            }
    system.env_more = {}
    return found


def _with_sleepers(system: Alone, count: int) -> float:
    """Megabytes beside the daemon with so many running jobs."""
    system.start_filled()
    _sleepers(system, count)
    return memory_mb(_beside(system))


def _beside(system: Alone) -> list[int]:
    """Zygote and shims."""
    daemon = system.daemon_pids()
    return [pid for pid in system.pids() if pid not in daemon]


def _sleepers(system: Alone, count: int) -> None:
    if count:
        system.post(system.connection(), system.submission("exec sleep 600", count, cpus=0))
        assert wait_until(lambda: len(marked(system.mark)) >= count, 60)
    time.sleep(SETTLE_S)  # at first a job is looked at often


QUESTIONS: dict[str, Callable[[Alone], dict[str, Any]]] = {
    "bulk": bulk,
    "events": events,
    "startup": startup,
    "durable_submit": durable_submit,
    "running": running,
    "looking": looking,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", default=list(QUESTIONS))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    system = Alone()
    found = {}
    for name in asked.questions or QUESTIONS:
        try:
            found[name] = QUESTIONS[name](system)
        finally:
            system.stop()
        print(json.dumps({name: found[name]}), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
