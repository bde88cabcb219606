"""Resource usage of a job: CPU time and peak memory, of one process and of many."""

from __future__ import annotations

import json
import os

import pytest

from gflow.targets.local.cgroups import find_layers, remove_layers
from tests.harness import Box, wait_until

pytestmark = pytest.mark.both_shims

# Burns half a second of CPU time, however long that takes.
BURN = "import time\nwhile time.process_time() < 0.5: pass\n"
HOLD = "import time; x = bytearray({mib} << 20); print('up', flush=True); time.sleep({rest})"


def script(box: Box, name: str, text: str) -> str:
    (box.work / name).write_text(text)
    return f"python3 {box.work / name}"


def test_resource_usage_is_recorded_and_shown(daemon: Box) -> None:
    job = daemon.submit(script(daemon, "burn.py", BURN + "x = bytearray(64 << 20)\n"))
    final = daemon.finished(job)
    assert 0.5 <= final["cpu_time_s"] < 3
    assert 64 <= final["peak_memory_mib"] < 200
    page = daemon.ok("gjob", "show", str(job)).splitlines()
    assert [line.split(":")[0] for line in page if "CPU time" in line or "Peak" in line] == [
        "CPU time",
        "Peak memory",
    ]
    shown = json.loads(daemon.ok("gjob", "show", "--json", str(job)))["jobs"][0]
    assert (shown["cpu_time_s"], shown["peak_memory_mib"]) == (final["cpu_time_s"], final["peak_memory_mib"])


def test_a_short_job_and_a_killed_one_used_something_too(daemon: Box) -> None:
    short = daemon.finished(daemon.submit("true"))
    assert short["cpu_time_s"] < 0.5 and 0 < short["peak_memory_mib"] < 100
    job = daemon.submit(script(daemon, "burn.py", BURN + "print('up', flush=True); time.sleep(60)\n"))
    assert daemon.job(job)["cpu_time_s"] is None
    wait_until(lambda: daemon.text_of(job) == "up\n")
    daemon.ok("gcancel", "--now", str(job))
    assert daemon.finished(job)["cpu_time_s"] >= 0.5


def test_usage_survives_the_daemon(daemon: Box) -> None:
    mark = daemon.work / "go"
    burn = script(daemon, "burn.py", BURN)
    job = daemon.submit(f"while [ ! -e {mark} ]; do sleep 0.02; done; {burn}")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    daemon.kill9()
    mark.touch()
    daemon.up()
    assert daemon.finished(job)["cpu_time_s"] >= 0.5


def test_unreaped_orphans_are_counted(box: Box) -> None:
    """A daemonised child is reaped by the shim, not by the job."""
    box.up("--cpus", "2", env={"GFLOW_NO_CGROUPS": "1"})
    done = box.work / "done"
    burn = script(box, "burn.py", BURN)
    job = box.submit(f"(setsid sh -c '{burn}; touch {done}' &); while [ ! -e {done} ]; do sleep 0.02; done")
    assert box.finished(job)["cpu_time_s"] >= 0.5


def test_attempts_add_up(daemon: Box) -> None:
    burn = script(daemon, "burn.py", BURN)
    job = daemon.submit("--max-retries", "2", "--retry-delay", "0", f"{burn}; exit 1")
    final = daemon.finished(job)
    assert final["attempt"] == 3
    assert 1.5 <= final["cpu_time_s"] < 6


def test_an_array_used_what_its_tasks_did(daemon: Box) -> None:
    job = daemon.submit("--array", "1-2", script(daemon, "burn.py", BURN))
    final = daemon.finished(job)
    tasks = [daemon.job(f"{job}_{task}") for task in (1, 2)]
    assert final["cpu_time_s"] == pytest.approx(sum(task["cpu_time_s"] for task in tasks))
    assert final["peak_memory_mib"] == max(task["peak_memory_mib"] for task in tasks)


@pytest.mark.parametrize("groups", ["with control groups", "without"])
def test_the_peak_is_of_all_processes_together(box: Box, groups: str) -> None:
    box.up("--cpus", "2", env={"GFLOW_NO_CGROUPS": "1"} if groups == "without" else {})
    hold = script(box, "hold.py", HOLD.format(mib=80, rest=5))
    job = box.submit(f"{hold} & {hold} & {hold} & wait")
    assert 240 <= box.finished(job)["peak_memory_mib"] < 400


def test_unreaped_children_are_counted_by_control_group(daemon: Box) -> None:
    """A process that ignores SIGCHLD does not learn the CPU time of its children."""
    layers = find_layers(f"test-{os.getpid()}")
    remove_layers(layers)
    if not layers.kill:
        pytest.skip("no version 2 control groups here")
    ignore = "import signal, subprocess, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    burn = script(daemon, "burn.py", BURN)
    run = f"subprocess.Popen('{burn}; echo done', shell=True)\ntime.sleep(60)\n"
    # With --cpus it is in its group from the start, and not only after a second.
    job = daemon.submit("--cpus", "1", script(daemon, "ignore.py", ignore + run))
    wait_until(lambda: daemon.text_of(job) == "done\n")
    daemon.ok("gcancel", "--now", str(job))
    assert daemon.finished(job)["cpu_time_s"] >= 0.5
