"""gflow memory: real processes on stand-in GPUs, simulated GPUs, and machines without a daemon."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.gpu_mock import MockGpus
from tests.harness import BIN, Box, wait_until
from tests.process.test_gpus import SLEEP, pid_of, running, stranger, up

__all__ = ["stranger"]  # a fixture


@pytest.fixture
def gpus(tmp_path: Path) -> MockGpus:
    return MockGpus(tmp_path, 2)


def test_processes_with_jobs_peaks_and_growth(box: Box, gpus: MockGpus, stranger: int) -> None:
    gpus[1].run(stranger, 3000)
    up(box, gpus)
    number = box.submit("--gpus", "1", "--job-name", "train", *SLEEP)
    running(box, number)
    pid = pid_of(box, number)
    gpus[0].run(pid, 5000)

    def seen(memory_mib: int) -> dict | None:
        first = box.api("GET", "/gpus/memory")[1]["gpus"][0]["processes"][0]
        return first if first["memory_mib"] == memory_mib else None

    assert wait_until(lambda: seen(5000))["pid"] == pid
    gpus[0].run(pid, 2000)
    job = wait_until(lambda: seen(2000))
    assert (job["job_id"], job["job_name"], job["is_job"]) == (number, "train", True)
    assert job["job_peak_mib"] == 5000 and job["command"].startswith("sleep 600")
    text = box.ok("gflow", "memory")
    assert "GPU 0: A100, 2.0 GiB of 79.6 GiB used (2 %), 77.7 GiB free\n  PID " in text
    assert f"{number} (train), sleep 600" in text and "not a job of gflow" in text and "stranger.py" in text
    assert f"New jobs: none (job {number} (train) has it alone)" in text

    watching = subprocess.Popen(
        [str(BIN / "gflow"), "memory", "watch", "--json", "-n", "1"],
        env=box.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None and watching.stderr is not None
    first = json.loads(watching.stdout.readline())["gpus"][0]["processes"][0]
    assert (first["growth_mib"], first["peak_mib"]) == (0, 2000)
    gpus[0].run(pid, 4000)
    grown = wait_until(lambda: _grown(watching.stdout.readline()))  # type: ignore[union-attr]
    assert (grown["growth_mib"], grown["peak_mib"]) == (2000, 4000)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(10) == 0 and watching.stderr.read() == ""


def _grown(line: str) -> dict | None:
    found = json.loads(line)["gpus"][0]["processes"][0]
    return found if found["growth_mib"] else None


def test_simulated_gpus_show_bookings_and_say_so(box: Box) -> None:
    box.up("--cpus", "4", "--simulate-gpus", "2x80G")
    number = box.submit("--gpus", "1", "--shared", "--gpu-memory", "20G", *SLEEP)
    running(box, number)
    text = box.ok("gflow", "memory")
    assert "GPU 0: Simulated 80 GB, 80.0 GiB (simulated, so there are no readings)" in text
    assert f"{number} (sleep), limit 20.0 GiB" in text and "60.0 GiB (75 %)" in text
    assert "2 simulated GPUs" in text.splitlines()[-1]
    found = json.loads(box.ok("gflow", "memory", "--json"))
    assert found["gpus"][0]["simulated"] and found["gpus"][0]["used_mib"] is None
    for words in (["--sort", "size"], ["now"], ["watch", "twice"], ["--sort", "growth"]):
        refused = box.run("gflow", "memory", *words)
        assert refused.returncode == 2 and refused.stdout == "", words
    assert box.api("GET", "/gpus/memory?sort=size")[0] == 400


def test_without_a_daemon_the_driver_is_asked(box: Box, gpus: MockGpus, stranger: int) -> None:
    gpus[1].run(stranger, 3000)
    text = box.ok("gflow", "memory", env=gpus.env)
    assert "GPU 1: A100, 2.9 GiB of 79.6 GiB used" in text and f"{stranger}" in text
    assert text.endswith("(no gflow daemon is running, so jobs are not known)\n") and "New jobs" not in text
    line = json.loads(box.ok("gflow", "memory", "watch", "--json", "-c", "1", env=gpus.env))
    assert line["gpus"][1]["processes"][0]["memory_mib"] == 3000 and line["gpus"][1]["offer"] is None


def test_without_a_daemon_and_a_driver_one_sentence_says_so(box: Box) -> None:
    for words in (["memory"], ["memory", "watch"]):
        refused = box.run("gflow", *words)
        assert refused.returncode == 3 and "there is no NVIDIA driver" in refused.stderr
        assert len(refused.stderr.splitlines()) == 2
