"""Device isolation in system mode: the kernel refuses to open the GPUs of other jobs (mock device files)."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gflow.targets.local.cgroups import find_layers, remove_layers
from gflow.targets.local.native_shim import find_restriction_error
from tests.gpu_mock import MockGpus
from tests.harness import Box, wait_until
from tests.system import System, system

# Harmless devices of the kernel in place of GPUs: random, urandom, full.
NUMBERS = {"nvidia0": (1, 8), "nvidia1": (1, 9), "nvidiactl": (1, 7)}
ALL, NONE, FIRST, SECOND = "yyy", "nnn", "yny", "nyy"


def find_problem() -> str:
    """Why devices cannot be restricted here; empty: they can be."""
    layers = find_layers(f"probe{os.getpid()}")
    try:
        return find_restriction_error(layers.kill)
    finally:
        remove_layers(layers)


def make_devices(root: Path) -> None:
    """Device files of two cards below `root`, and what the driver would list about them."""
    (root / "dev").mkdir(parents=True)
    for name, (major, minor) in NUMBERS.items():
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(root / "dev" / name, 0o666)
    for number in (0, 1):
        card = root / f"proc/driver/nvidia/gpus/0000:0{number + 1}:00.0"
        card.mkdir(parents=True)
        uuid = f"GPU-{number:08x}-0000-0000-0000-000000000000"
        (card / "information").write_text(f"Model: \t A100\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n")


class Lab:
    """A system daemon with two mock cards."""

    def __init__(self, machine: System) -> None:
        self.machine, self.ann, self.bob = machine, machine.ann, machine.bob
        self.folder = machine.root / "gpus"
        make_devices(self.folder)
        gpus = MockGpus(machine.root / "driver", 2)
        self.env = {
            **gpus.env,
            "GFLOW_LEASE_DIR": str(machine.root / "leases"),
            "GFLOW_DEVICE_ROOT": str(self.folder),
        }
        self.up()

    def up(self, **more: str) -> None:
        Box.up(self.machine.box, "--system", "--cpus", "8", env=self.env | more)

    @property
    def looks(self) -> str:
        """A shell command: for each device, `y` or `n`."""
        files = " ".join(f"{self.folder}/dev/{name}" for name in NUMBERS)
        return f"for f in {files}; do (true <$f) 2>/dev/null && printf y || printf n; done"

    def seen(self, box: Box, *options: str) -> str:
        """What a job with these options can open."""
        job = box.submit(*options, "sh", "-c", self.looks)
        assert self.machine.box.finished(job)["exit_code"] == 0
        return self.machine.log_of(box, job)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if why := find_problem():
        pytest.skip(f"devices cannot be restricted here: {why}")
    with system() as machine:
        yield Lab(machine)


def test_job_opens_only_its_own_gpus(lab: Lab) -> None:
    assert lab.seen(lab.ann, "--gpus", "2") == ALL
    assert lab.seen(lab.ann) == NONE
    assert lab.seen(lab.bob, "--gpus", "1") == FIRST
    holder = lab.ann.submit("--gpus", "1", "sleep", "600")
    wait_until(lambda: lab.machine.box.job(holder)["state"] == "Running")
    assert lab.seen(lab.bob, "--gpus", "1") == SECOND
    # The Python shim, which has the jobs with limits.
    assert lab.seen(lab.bob, "--gpus", "1", "--memory", "200M") == SECOND
    assert lab.seen(lab.bob, "--cpus", "1") == NONE
    assert lab.machine.box.finished(lab.ann.submit("--gpus", "1", "true"))["exit_code"] == 0
    lab.ann.ok("gcancel", "--now", str(holder))


def test_command_in_a_job_opens_what_the_job_opens(lab: Lab) -> None:
    for options in (("--gpus", "1"), ("--gpus", "1", "--memory", "200M")):
        job = lab.ann.submit(*options, "sleep", "600")
        wait_until(lambda job=job: lab.machine.box.job(job)["state"] == "Running")
        assert lab.ann.ok("gjob", "exec", str(job), "--", "sh", "-c", lab.looks) == FIRST
        lab.ann.ok("gcancel", "--now", str(job))
        lab.machine.box.finished(job)


@pytest.mark.parametrize("options", [(), ("--memory", "200M")])
def test_job_that_is_stopped_opens_no_more_than_before(lab: Lab, options: tuple[str, ...]) -> None:
    tries = f"(true <{lab.folder}/dev/nvidia1) 2>/dev/null && echo opened || echo refused"
    script = f"trap 'echo told to stop' TERM; while :; do sleep 0.05; {tries}; done"
    job = lab.ann.submit(*options, "--gpus", "1", "--grace", "2", "sh", "-c", script)
    wait_until(lambda: "refused" in lab.machine.log_of(lab.ann, job))
    lab.ann.ok("gcancel", str(job))
    lab.machine.box.finished(job)
    _, _, after = lab.machine.log_of(lab.ann, job).partition("told to stop")
    assert "refused" in after and "opened" not in lab.machine.log_of(lab.ann, job)


def test_restriction_outlives_the_daemon(lab: Lab) -> None:
    mark = lab.ann.work / "go"
    script = f"while [ ! -e {mark} ]; do sleep 0.05; done; {lab.looks}"
    job = lab.ann.submit("--gpus", "1", "sh", "-c", script)
    wait_until(lambda: lab.machine.box.job(job)["state"] == "Running")
    lab.machine.box.kill9()
    lab.up()
    mark.touch()
    assert lab.machine.box.finished(job)["exit_code"] == 0
    assert lab.machine.log_of(lab.ann, job) == FIRST
    assert lab.seen(lab.ann) == NONE


def test_gpus_are_named_as_cuda_counts_them(lab: Lab) -> None:
    """CUDA counts only the cards that it can open: the second card alone has no usable index."""
    holder = lab.ann.submit("--gpus", "1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 600")
    wait_until(lambda: lab.machine.log_of(lab.ann, holder) == "0\n")
    second = lab.bob.submit("--gpus", "1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    lab.machine.box.finished(second)
    assert lab.machine.log_of(lab.bob, second).startswith("GPU-00000001-")
    lab.ann.ok("gcancel", "--now", str(holder))


def test_ginfo_and_the_setting_say_whether_devices_are_isolated(lab: Lab) -> None:
    assert "Devices: a job can open only its own GPUs" in lab.ann.ok("ginfo", "-l")
    assert json.loads(lab.ann.ok("ginfo", "--json"))["is_isolated"] is True
    lab.machine.box.down()
    lab.up(GFLOW_GPU__ISOLATE_DEVICES="false")
    try:
        assert lab.seen(lab.ann) == ALL
        said = "a job can open every GPU: gpu.isolate_devices is false"
        assert said in lab.ann.ok("ginfo", "-l")
        assert "gpu.isolate_devices is false" in lab.ann.run("gflow", "doctor").stdout
    finally:
        lab.machine.box.down()
        lab.up()
