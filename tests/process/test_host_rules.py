"""What the administrator sets for all jobs: a default memory limit, CPU quotas, the out-of-memory score."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gflow.targets.local.cgroups import find_layers, read_mounts, remove_layers
from tests.harness import Box, wait_until
from tests.system import System, system

# A job with --cpus is left to the Python shim.
SHIMS = {"native": (), "python": ("--cpus", "1")}
EATER = "b = bytearray({mib} << 20); import time; time.sleep({s})"


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    with system() as made:
        yield made


@pytest.fixture(scope="module")
def limited(machine: System) -> System:
    machine.box.env["GFLOW_JOBS__DEFAULT_MEMORY"] = "150"
    return machine.up()


def eat(box: Box, *options: str, mib: int = 300, s: float = 60) -> int:
    return box.submit(*options, "python3", "-c", EATER.format(mib=mib, s=s))


@pytest.mark.parametrize("shim", SHIMS)
def test_job_without_memory_ends_at_the_default_limit(limited: System, shim: str) -> None:
    job = eat(limited.ann, *SHIMS[shim])
    modest = limited.bob.submit(*SHIMS[shim], "true")
    ended = limited.box.finished(job)
    assert ended["state"] == "Failed"
    assert ended["reason"].startswith("OutOfMemory: used ")
    assert ended["reason"].endswith("MiB of 150 MiB, the most of a job without --memory")
    assert "ran out of memory: used" in limited.log_of(limited.ann, job)
    assert limited.box.finished(modest)["state"] == "Finished"


@pytest.mark.parametrize("shim", SHIMS)
def test_job_that_asks_for_more_gets_it(limited: System, shim: str) -> None:
    job = eat(limited.ann, *SHIMS[shim], "--memory", "600M", s=2)
    assert limited.box.finished(job)["state"] == "Finished"


def test_shim_that_ended_a_job_runs_the_next_one(limited: System) -> None:
    for _ in range(2):
        assert limited.box.finished(eat(limited.ann))["reason"].startswith("OutOfMemory")
        assert limited.box.finished(limited.ann.submit("true"))["state"] == "Finished"


def test_limit_holds_for_a_run_of_an_earlier_daemon(limited: System) -> None:
    mark = limited.ann.work / "eat"
    script = f"while [ ! -e {mark} ]; do sleep 0.05; done; exec python3 -c '{EATER.format(mib=300, s=60)}'"
    job = limited.ann.submit("sh", "-c", script)
    wait_until(lambda: limited.box.job(job)["state"] == "Running")
    limited.box.kill9()
    limited.up()
    mark.touch()
    assert limited.box.finished(job)["reason"].startswith("OutOfMemory")


@pytest.mark.parametrize("shim", SHIMS)
def test_job_has_a_higher_out_of_memory_score(limited: System, shim: str) -> None:
    job = limited.ann.submit(*SHIMS[shim], "cat", "/proc/self/oom_score_adj")
    assert limited.box.finished(job)["state"] == "Finished"
    assert limited.log_of(limited.ann, job) == "200\n"


def test_settings_change_the_rules(machine: System) -> None:
    machine.box.down()
    machine.box.env["GFLOW_JOBS__DEFAULT_MEMORY"] = "150"
    machine.up(env={"GFLOW_JOBS__DEFAULT_MEMORY_RULE": "warn", "GFLOW_JOBS__CPU_LIMIT": "quota"})
    for options in SHIMS.values():
        job = eat(machine.ann, *options, s=3)
        assert machine.box.finished(job)["state"] == "Finished"
        (line,) = machine.log_of(machine.ann, job).splitlines()
        assert line.startswith("gflow: the job uses 3")
        assert line.endswith("MiB of memory, more than the 150 MiB of a job without --memory")
    layers = find_layers("probe")
    remove_layers(layers)
    if layers.cpu:
        assert quota_of(machine) == "200000"
    machine.box.down()
    machine.up(env={"GFLOW_JOBS__DEFAULT_MEMORY_RULE": "off", "GFLOW_JOBS__OOM_SCORE": "0"})
    job = eat(machine.ann, s=2.5)
    assert machine.box.finished(job)["state"] == "Finished"
    assert machine.log_of(machine.ann, job) == ""


def quota_of(machine: System) -> str:
    """The CPU time in microseconds, per 0.1 s, that a job with two CPUs gets."""
    job = machine.ann.submit("--cpus", "2", "cat", "/proc/self/cgroup")
    holder = machine.ann.submit("--cpus", "2", "sleep", "60")
    machine.box.finished(job)
    wait_until(lambda: machine.box.job(holder)["state"] == "Running")
    mounts = read_mounts(Path("/proc/self/mountinfo").read_text(), machine.log_of(machine.ann, job))
    folder = Path(mounts.folders.get("cpu") or mounts.folders[""])
    file = folder.with_name(f"{holder}.1") / ("cpu.cfs_quota_us" if "cpu" in mounts.folders else "cpu.max")
    wait_until(file.exists)
    quota = file.read_text().split()[0]
    machine.ann.ok("gcancel", "--now", str(holder))
    return quota


def test_private_daemon_has_no_default_limit(box: Box) -> None:
    box.up(env={"GFLOW_JOBS__DEFAULT_MEMORY": "150"})
    assert box.finished(eat(box, s=2))["state"] == "Finished"
