"""Running jobs that are stuck, stopped, waiting or busy, observed through their real processes."""

from __future__ import annotations

import json
import os
import posix
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gflow.client import http, run_observation, stack_sampler
from gflow.diagnosis.slow_runs.run_verdict import RunDiagnosis, judge
from tests.gpu_mock import MockGpus
from tests.harness import Box, wait_until
from tests.process.test_gpus import pid_of, running, up

STUCK = "import threading; print('up', flush=True); threading.Event().wait()"
PRINTING = "import time\nwhile True: print('up', flush=True); time.sleep(0.2)"
BUSY = "print('up', flush=True)\nwhile True: pass"
# A parent that waits for its vforked child is in uninterruptible sleep, as one that waits for a file server.
HUNG = """
import ctypes, os, platform, time
print('up', flush=True)
number = {'x86_64': 56, 'aarch64': 220}[platform.machine()]
if ctypes.CDLL(None).syscall(number, 0x4000 | 17, 0, 0, 0, 0) == 0:
    time.sleep(600)
    os._exit(0)
"""
FORKED = """
import os, time
print('up', flush=True)
if os.fork() == 0:
    while True: pass
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_observation, "SECONDS", 1)


def use(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(posix.environ, b"GFLOW_SOCKET", os.fsencode(box.socket))


def start(box: Box, code: str, *options: str) -> int:
    job = box.submit(*options, sys.executable, "-c", code)
    wait_until(lambda: "up" in box.text_of(job), what=f"job {job} to print")
    return job


def shown(job: int) -> dict:
    return http.get(http.job_path(str(job)))["jobs"][0]


def diagnose(job: int, age_s: float = 900.0) -> RunDiagnosis:
    return judge(run_observation.observe(shown(job), age_s=age_s))


def child_of(pid: int) -> int:
    """The program that a shell waits for; 0: it does not run yet."""
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(words[0]) if words and Path(f"/proc/{words[0]}/comm").read_text() != "bash\n" else 0


def grow_old(box: Box, job: int, seconds: int = 650) -> None:
    """Let the last output of a job be ten minutes ago."""
    path = http.get(http.job_path(str(job), "/log"))["path"]
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def causes(found: RunDiagnosis) -> list[str]:
    return [one.cause for one in found.findings]


def test_jobs_of_this_machine_are_judged_by_their_processes(
    daemon: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(daemon, monkeypatch)
    stuck, busy = start(daemon, STUCK, "--gpus", "1"), start(daemon, BUSY)
    found = diagnose(busy)
    assert (found.verdict.value, causes(found)) in (("fine", []), ("slow", ["cpu-contention"])), found
    assert diagnose(busy, age_s=5.0).verdict.value == "starting"
    grow_old(daemon, stuck, 25)
    assert diagnose(stuck, age_s=30.0).verdict.value == "unknown"
    grow_old(daemon, stuck)
    found = diagnose(stuck)
    assert (found.verdict.value, causes(found)) == ("stuck", ["no-activity"]), found
    assert "nothing new in the log for 11 min" in found.findings[0].figures
    has_stack = not any("no stack sample" in note for note in found.notes)
    assert has_stack or "threading.Event().wait()" in found.findings[0].figures[-1], found
    assert found.findings[0].advice[-1] == f"or end it: gcancel {stuck}"
    assert "Its GPUs are simulated: nothing is known about their use." in found.notes


def test_job_with_simulated_gpus_is_fine_only_if_it_writes(
    daemon: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(daemon, monkeypatch)
    found = diagnose(start(daemon, PRINTING, "--gpus", "1"))
    assert (found.verdict.value, found.summary[:16]) == ("fine", "it writes output"), found
    busy = start(daemon, BUSY, "--gpus", "1")
    grow_old(daemon, busy)
    found = diagnose(busy)
    assert found.verdict.value == "unknown" or causes(found) == ["cpu-contention"], found


@pytest.mark.skipif(not stack_sampler.find_sampler(), reason="py-spy is not installed")
def test_stack_sample_shows_the_line_of_a_stuck_program(
    daemon: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(daemon, monkeypatch)
    script = tmp_path / "waits.py"
    script.write_text(
        "import time\nprint('up', flush=True)\ndef wait_for_peer():\n    time.sleep(600)\nwait_for_peer()\n"
    )
    job = daemon.submit(sys.executable, str(script))
    wait_until(lambda: "up" in daemon.text_of(job))
    grow_old(daemon, job)
    frame = diagnose(job).findings[0].frame
    assert frame and (frame.file, frame.line, frame.code) == (str(script), 4, "time.sleep(600)")


def test_missing_sampler_is_said(daemon: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    use(daemon, monkeypatch)
    monkeypatch.setattr(stack_sampler, "find_sampler", lambda: "")
    found = diagnose(start(daemon, BUSY))
    assert any("no stack sample: py-spy is not installed" in note for note in found.notes)


def test_stopped_and_hung_processes_are_named(daemon: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    use(daemon, monkeypatch)
    stopped, hung = start(daemon, BUSY), start(daemon, HUNG)
    os.kill(pid_of(daemon, stopped), signal.SIGSTOP)
    assert causes(diagnose(stopped, age_s=3.0)) == ["stopped"]
    below = daemon.submit(f"echo up; {sys.executable} -c 'while True: pass'; true")
    child = wait_until(lambda: child_of(pid_of(daemon, below)), what="the program below the shell")
    os.kill(child, signal.SIGSTOP)
    found = diagnose(below, age_s=3.0)
    assert (found.verdict.value, causes(found)) == ("stuck", ["stopped"]), found
    assert f"kill -CONT {child}" in found.findings[0].advice[0]
    found = diagnose(hung, age_s=50.0)
    assert (found.verdict.value, causes(found)) == ("stuck", ["hung-io"]), found
    assert "state D" in found.findings[0].figures[0]


def test_forked_child_counts_as_worker(daemon: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    use(daemon, monkeypatch)
    facts = run_observation.observe(shown(start(daemon, FORKED)), age_s=50.0)
    assert sorted(one.role for one in facts.processes) == ["main", "worker"]
    (worker,) = facts.of_role("worker")
    assert worker.wanted_cpu > 50, worker


def test_job_of_another_daemon_with_the_same_id_is_left_out(
    daemon: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Box(tmp_path / "other")
    try:
        other.up("--simulate-gpus", "1x80G")
        start(other, BUSY)
        use(daemon, monkeypatch)
        job = start(daemon, STUCK)
        facts = run_observation.observe(shown(job), age_s=50.0)
        assert [one.pid for one in facts.processes] == [pid_of(daemon, job)]
    finally:
        other.clean_up()


def test_late_step_is_reported_with_the_usual_time(daemon: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    use(daemon, monkeypatch)
    job = start(daemon, f"import os; os.system('gflow report step=40 steps=100'); {STUCK}")
    wait_until(lambda: shown(job)["progress"])
    facts = run_observation.observe(shown(job), age_s=900.0)
    assert facts.steps and (facts.steps.step, facts.steps.steps) == (40, 100)
    assert facts.steps.age_s < 60 and facts.steps.usual_s


def test_page_and_json_of_a_running_job(daemon: Box) -> None:
    job = start(daemon, STUCK)
    page = daemon.ok("gjob", "why", str(job))
    assert page.startswith(f"Job {job} (python) is running: starting: it has run for ") or "python3" in page
    assert "Ask again in " in page and f"gjob why {job}\n" in page
    assert max(map(len, page.splitlines())) <= 80
    answer = json.loads(daemon.ok("gjob", "why", str(job), "--json"))
    assert answer["verdict"] == "starting" and answer["findings"] == [] and answer["cause"] is None
    assert {"blockers", "start", "last_lines", "log_error", "ask_again_s", "notes"} <= answer.keys()


def test_unused_gpu_and_foreign_process_are_found(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = MockGpus(tmp_path, 2)
    gpus[0].busy, gpus[0].milliwatts = 95, 300_000
    up(box, gpus)
    use(box, monkeypatch)
    job = start(box, BUSY, "--gpus", "2")
    running(box, job)
    gpus[0].run(pid_of(box, job), 40_000)
    wait_until(lambda: _samples(job) >= 6, 30, "samples")
    found = diagnose(job)
    assert (found.verdict.value, causes(found)[0]) == ("slow", "unused-gpus"), found
    assert "GPU 1" in found.findings[0].summary
    gpus[0].run(os.getpid(), 2000)
    wait_until(lambda: http.get("/info")["gpus"][0]["processes"], 10, "the foreign process")
    found = diagnose(job)
    assert causes(found)[0] == "other-process" and f"process {os.getpid()}" in found.findings[0].figures[0]


def test_power_limit_and_traffic_are_read_from_nvml(box: Box, tmp_path: Path) -> None:
    gpus = MockGpus(tmp_path, 1)
    gpus[0].busy, gpus[0].milliwatts, gpus[0].limit_milliwatts = 97, 200_000, 200_000
    gpus[0].clock, gpus[0].slowed, gpus[0].received_kb = 800, 0x04, 3_000_000
    up(box, gpus)
    job = start(box, BUSY, "--gpus", "1")
    gpus[0].run(pid_of(box, job), 40_000)
    code = f"""
from gflow.client import http, run_observation
from gflow.diagnosis.slow_runs.run_verdict import judge
facts = run_observation.observe(http.get('/jobs/{job}')['jobs'][0], age_s=90.0)
gpu = facts.gpus[0]
print(judge(facts).findings[0].cause, gpu.power_limit_w, gpu.clock_most_mhz, gpu.received_mb_s)
"""
    wait_until(lambda: box.api("GET", f"/jobs/{job}/usage")[1]["samples"], 30, "samples")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=box.env | gpus.env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "power-limit 200.0 1410 3000.0\n", done.stderr


def _samples(job: int) -> int:
    """Samples of GPU 0 since the process took its memory."""
    samples = http.get(http.job_path(str(job), "/usage"))["samples"]
    return sum(one["gpu"] == 0 and bool(one["memory_mib"]) for one in samples)
