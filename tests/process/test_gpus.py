"""Real GPUs as a daemon sees them, with a stand-in for NVIDIA's library that the tests drive live."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.gpu_mock import GRAPHICS, LOST, NOT_LOADED, Device, MockGpus
from tests.harness import Box, wait_until
from tests.process.test_events import listening

SLEEP = ("sleep", "600")


@pytest.fixture
def gpus(tmp_path: Path) -> MockGpus:
    return MockGpus(tmp_path, 2)


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is not of any job."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "stranger.py"])
    yield process.pid
    process.kill()
    process.wait()


def up(box: Box, gpus: MockGpus, **more: str) -> Box:
    return box.up("--cpus", "4", env={**gpus.env, "GFLOW_LEASE_DIR": str(box.root / "leases"), **more})


def gpu(box: Box, index: int) -> dict:
    return next(view for view in box.api("GET", "/info")[1]["gpus"] if view["index"] == index)


def reason(box: Box, index: int) -> str:
    return gpu(box, index)["reason"] or ""


def pid_of(box: Box, number: int) -> int:
    """The job's own process."""

    def found() -> int:
        for path in (box.data / "run").glob(f"{number}.*"):
            for line in path.read_text().splitlines():
                if line.startswith("job "):
                    return int(line.split()[3])
        return 0

    return wait_until(found, what=f"job {number} to run")


def running(box: Box, number: int) -> dict:
    return wait_until(lambda: (job := box.job(number))["state"] == "Running" and job, what=f"{number} to run")


def shared(box: Box, limit: str, *command: str) -> int:
    return box.submit("--gpus", "1", "--shared", "--gpu-memory", limit, *(command or SLEEP))


def change(device: Device, values: dict) -> None:
    for name, value in values.items():
        setattr(device, name, value)


class TestDetection:
    def test_cards_with_model_uuid_memory_and_readings(self, box: Box, gpus: MockGpus):
        gpus[1].celsius, gpus[1].busy = 61, 87
        up(box, gpus)
        text = box.ok("ginfo", "-l")
        assert "GPU 1: NVIDIA A100" in text
        assert "UUID: GPU-00000001-0000-0000-0000-000000000000" in text
        assert "busy 87%, 61 °C, 70 W" in text
        assert "Driver: 580.00" in text
        assert box.ok("ginfo").splitlines()[1].split() == ["gpu", "2", "0,1", "idle"]

    def test_a_job_sees_its_gpus_by_number(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        number = box.submit("--gpus", "2", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER")
        assert box.finished(number)["state"] == "Finished"
        assert box.text_of(number) == "0,1 PCI_BUS_ID\n"

    def test_job_sees_its_gpus_by_uuid_if_configured(self, box: Box, gpus: MockGpus):
        up(box, gpus, GFLOW_GPU__VISIBLE_BY="uuid")
        number = box.submit("--gpus", "1", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES")
        box.finished(number)
        assert box.text_of(number) == "GPU-00000000-0000-0000-0000-000000000000\n"

    def test_sixteen_cards(self, box: Box, tmp_path: Path):
        up(box, MockGpus(tmp_path, 16))
        assert len(box.api("GET", "/info")[1]["gpus"]) == 16
        number = box.submit("--gpus", "16", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES")
        box.finished(number)
        assert box.text_of(number) == ",".join(map(str, range(16))) + "\n"

    def test_slices_are_gpus_of_their_own(self, box: Box, gpus: MockGpus):
        for place in (8, 9, 10):
            gpus.add(place, memory_mib=10240, name="NVIDIA A100 MIG 1g.10gb", parent=1)
        up(box, gpus)
        views = box.api("GET", "/info")[1]["gpus"]
        assert [view["index"] for view in views] == [0, 4, 5, 6]
        assert [view["memory_mib"] for view in views] == [81559, 10240, 10240, 10240]
        number = box.submit(
            "--gpus", "1", "--gpu-type", "1g.10gb", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES"
        )
        box.finished(number)
        assert box.text_of(number) == "MIG-00000008-0000-0000-0000-000000000000\n"

    def test_no_driver_is_no_trouble(self, box: Box, gpus: MockGpus):
        gpus.machine.init_error = NOT_LOADED
        up(box, gpus)
        assert box.ok("ginfo").startswith("No GPUs")
        refused = box.run("gbatch", "--gpus", "1", "true")
        assert refused.returncode == 1 and "none that gflow can see" in refused.stderr
        assert box.finished(box.submit("true"))["state"] == "Finished"


class TestStrangers:
    def test_a_stranger_blocks_its_gpu_and_the_job_starts_when_it_ends(
        self, box: Box, gpus: MockGpus, stranger: int
    ):
        for each in (gpus[0], gpus[1]):
            each.run(stranger, 3000)
        up(box, gpus)
        assert reason(box, 0).startswith("Unmanaged: ")
        table = box.ok("ginfo")
        assert "Unmanaged" in table and "stranger.py" in table and f"pid {stranger}" in table
        number = box.submit("--gpus", "1", "true")
        waiting = box.job(number)
        assert waiting["state"] == "Queued" and "Unmanaged" in waiting["reason"]
        gpus[1].end(stranger)
        assert box.finished(number)["gpu_ids"] == [1]

    def test_the_process_of_a_job_is_no_stranger(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        number = box.submit("--gpus", "1", "bash", "-c", "setsid sleep 600 & wait")
        running(box, number)
        child = wait_until(
            lambda: (
                subprocess.run(
                    ["pgrep", "-P", str(pid_of(box, number))], capture_output=True, text=True
                ).stdout
            )
        )
        gpus[0].run(int(child), 5000)
        wait_until(lambda: gpu(box, 0)["holders"][0]["used_mib"] == 5000)
        assert reason(box, 0) == ""
        assert "uses 4.9 GiB" in box.ok("ginfo", "-l")

    def test_small_unmanaged_process_is_tolerated_and_counted(self, box: Box, gpus: MockGpus, stranger: int):
        gpus[0].run(stranger, 400)
        up(box, gpus, GFLOW_GPU__UNMANAGED_MEMORY_MB="500")
        assert reason(box, 0) == ""
        assert "small: blocks nothing" in box.ok("ginfo", "-l")
        alone = box.submit("--gpus", "1", "--gpu-memory", "79G", *SLEEP)
        assert running(box, alone)["gpu_ids"] == [0], "slack: 79G of 79.6 with 512 MiB taken"

    def test_free_gpu_memory_is_checked_before_the_start(self, box: Box, gpus: MockGpus, stranger: int):
        gpus[0].run(stranger, 20000)
        up(box, gpus, GFLOW_GPU__UNMANAGED_MEMORY_MB="30000")
        number = box.submit("--gpus", "1", "--gpu-memory", "70G", *SLEEP)
        assert running(box, number)["gpu_ids"] == [1]

    def test_a_desktop_is_tolerated(self, box: Box, gpus: MockGpus, stranger: int):
        gpus[0].run(stranger, 700, GRAPHICS)
        up(box, gpus)
        assert reason(box, 0) == ""

    def test_a_pid_that_means_nothing_here_blocks_too(self, box: Box, gpus: MockGpus):
        gpus[0].run(2**22 + 1, 700)
        up(box, gpus)
        wait_until(lambda: reason(box, 0).startswith("CannotTell"))
        gpus[0].end(2**22 + 1)
        wait_until(lambda: reason(box, 0) == "")

    def test_unmanaged_process_is_ignored_by_command(self, box: Box, gpus: MockGpus, stranger: int):
        gpus[0].run(stranger, 3000)
        up(box, gpus)
        assert reason(box, 0).startswith("Unmanaged")
        said = ("--gpu", "0", "--pid", str(stranger))
        box.ok("gctl", "gpu-process", "ignore", *said)
        wait_until(lambda: reason(box, 0) == "")
        listed = box.api("GET", "/gpu-processes")[1]["processes"]
        assert listed == [{"gpu_index": 0, "pid": stranger}]
        assert box.ok("gctl", "gpu-process", "list") == f"gpu=0\tpid={stranger}\n"
        box.ok("gctl", "gpu-process", "unignore", *said)
        wait_until(lambda: reason(box, 0).startswith("Unmanaged"))
        with closing(sqlite3.connect(f"file:{box.data}/gflow.db?mode=ro", uri=True)) as db:
            history = db.execute(
                "SELECT what, detail, uid FROM audit WHERE what LIKE 'gpu process %' ORDER BY id"
            )
            about = f"process {stranger} on GPU 0"
            assert [*history] == [
                ("gpu process ignored", about, os.getuid()),
                ("gpu process no longer ignored", about, os.getuid()),
            ]
        assert box.run("gctl", "gpu-process", "ignore", "--gpu", "7", "--pid", "1").returncode == 1
        assert box.run("gctl", "gpu-process", "ignore", "--gpu", "7").returncode == 2


class TestTrouble:
    def test_a_lost_card_is_shown_and_the_other_goes_on(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        gpus[0].error = LOST
        wait_until(lambda: reason(box, 0).startswith("Lost"))
        number = box.submit("--gpus", "1", "true")
        assert box.finished(number)["gpu_ids"] == [1]
        gpus[0].error = 0
        wait_until(lambda: reason(box, 0) == "")

    def test_numbers_stay_with_the_cards_when_one_goes(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        first = box.submit("--gpus", "1", *SLEEP)
        second = box.submit("--gpus", "1", *SLEEP)
        assert (running(box, first)["gpu_ids"], running(box, second)["gpu_ids"]) == ([0], [1])
        gpus[0].present = 0  # the driver renumbers: what was 1 is 0 now
        wait_until(lambda: reason(box, 0).startswith("Lost"))
        box.ok("gcancel", str(first))
        third = box.submit("--gpus", "1", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES")
        wait_until(lambda: box.job(first)["state"] == "Cancelled")
        assert box.job(third)["state"] == "Queued"
        box.ok("gcancel", str(second))
        assert box.finished(third)["gpu_ids"] == [1]
        wait_until(lambda: gpus.machine.inits > 1)
        fourth = box.submit("--gpus", "1", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert box.finished(fourth)["reason"] is None
        assert box.text_of(fourth).startswith(("GPU-00000001", "1"))

    def test_a_driver_that_hangs_stops_placement_and_nothing_else(self, box: Box, gpus: MockGpus):
        up(box, gpus, GFLOW_GPU__PATIENCE_S="2")
        gpus.machine.hang = 1
        wait_until(lambda: reason(box, 0).startswith("CannotTell"))
        number = box.submit("--gpus", "1", "true")
        assert "has not answered" in box.job(number)["reason"]
        assert box.finished(box.submit("true"))["state"] == "Finished"
        gpus.machine.hang = 0
        assert box.finished(number)["state"] == "Finished"

    def test_a_driver_that_hangs_from_the_start(self, box: Box, gpus: MockGpus):
        gpus.machine.hang = 1
        up(box, gpus, GFLOW_GPU__PATIENCE_S="2")
        number = box.submit("--gpus", "2", "true")
        assert "has not answered" in box.job(number)["reason"]
        box.down()
        up(box, gpus, GFLOW_GPU__PATIENCE_S="2")
        gpus.machine.hang = 0
        assert box.finished(number)["state"] == "Finished"

    def test_the_driver_is_reloaded(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        gpus.machine.init_error = NOT_LOADED
        wait_until(lambda: reason(box, 1) != "")
        number = box.submit("--gpus", "1", "true")
        assert box.job(number)["state"] == "Queued"
        gpus.machine.init_error = 0
        assert box.finished(number)["state"] == "Finished"

    @pytest.mark.parametrize("flaps", [6])
    def test_a_card_that_comes_and_goes(self, box: Box, gpus: MockGpus, flaps: int):
        up(box, gpus)
        for _ in range(flaps):
            gpus[1].present = 0
            wait_until(lambda: reason(box, 1) != "")
            gpus[1].present = 1
            wait_until(lambda: reason(box, 1) == "")
        assert box.finished(box.submit("--gpus", "2", "true"))["gpu_ids"] == [0, 1]


class TestMany:
    SLICE = "1g.10gb"

    def slices(self, gpus: MockGpus) -> None:
        for place in (8, 9, 10):
            gpus.add(place, memory_mib=10240, name=f"NVIDIA A100 MIG {self.SLICE}", parent=1)

    def test_healthy_gpus_of_sixteen_are_assigned(self, box: Box, tmp_path: Path, stranger: int):
        gpus = MockGpus(tmp_path, 16)
        for used in (3, 5):
            gpus[used].run(stranger, 3000)
        up(box, gpus)
        gpus[7].present, gpus[9].error, gpus[11].xid = 0, LOST, 79
        wait_until(lambda: all(reason(box, index) for index in (3, 5, 7, 9, 11)))
        good = [index for index in range(16) if index not in (3, 5, 7, 9, 11)]
        first = box.submit("--gpus", "11", *SLEEP)
        assert running(box, first)["gpu_ids"] == good
        more = box.submit("--gpus", "12", "true")
        for _ in range(3):  # cards that flap are never given out while they are away
            gpus[9].error = 0
            wait_until(lambda: reason(box, 9) == "")
            gpus[9].error = LOST
            wait_until(lambda: reason(box, 9).startswith("Lost"))
        box.ok("gcancel", str(first))
        box.finished(first)
        assert box.job(more)["reason"].startswith("Resources: Need 12 GPUs, only 11 available; GPU 3 is Unm")
        gpus[7].present = 1
        assert box.finished(more)["gpu_ids"] == sorted([*good, 7])

    def test_a_slice_in_use_blocks_itself_alone_and_its_limit_is_held(
        self, box: Box, gpus: MockGpus, stranger: int
    ):
        self.slices(gpus)
        gpus[8].run(stranger, 500)
        up(box, gpus)
        assert [bool(reason(box, index)) for index in (0, 4, 5, 6)] == [False, True, False, False]
        both = box.submit("--gpus", "2", "--gpu-type", self.SLICE, "true")
        assert box.finished(both)["gpu_ids"] == [5, 6]
        ask = ("--gpus", "1", "--gpu-type", self.SLICE, "--shared", "--gpu-memory", "4G")
        hog, victim = box.submit(*ask, *SLEEP), box.submit(*ask, *SLEEP)
        assert running(box, hog)["gpu_ids"] == running(box, victim)["gpu_ids"] == [5]
        gpus[9].run(pid_of(box, victim), 4000)
        gpus[9].run(pid_of(box, hog), 5000)
        assert box.finished(hog)["reason"] == "GpuMemory: used 4.883 GiB of 4 GiB on GPU 5"
        assert box.job(victim)["state"] == "Running"

    def test_a_slice_that_goes_and_comes_back_is_still_its_jobs(self, box: Box, gpus: MockGpus):
        self.slices(gpus)
        up(box, gpus)
        holder = box.submit("--gpus", "3", "--gpu-type", self.SLICE, *SLEEP)
        assert running(box, holder)["gpu_ids"] == [4, 5, 6]
        gpus[9].present = 0
        wait_until(lambda: reason(box, 5).startswith("Lost"))
        other = box.submit("--gpus", "1", "--gpu-type", self.SLICE, "true")
        gpus[9].present = 1
        wait_until(lambda: reason(box, 5) == "")
        assert [view["index"] for view in box.api("GET", "/info")[1]["gpus"]] == [0, 4, 5, 6]
        assert box.job(other)["state"] == "Queued"
        box.ok("gcancel", str(holder))
        assert box.finished(other)["state"] == "Finished"

    def test_sharing_jobs_survive_a_hanging_driver(self, box: Box, gpus: MockGpus):
        up(box, gpus, GFLOW_GPU__PATIENCE_S="2")
        first, second = shared(box, "20G"), shared(box, "20G")
        running(box, second)
        gpus.machine.hang = 1
        wait_until(lambda: reason(box, 0).startswith("CannotTell"))
        box.ok("gcancel", str(first))
        assert box.finished(first)["state"] == "Cancelled"
        waiting = shared(box, "20G")
        assert box.finished(box.submit("true"))["state"] == "Finished"
        gpus[0].run(pid_of(box, second), 30000)
        assert box.job(second)["state"] == "Running" and box.job(waiting)["state"] == "Queued"
        gpus.machine.hang = 0
        assert box.finished(second)["reason"].startswith("GpuMemory: used 29.3 GiB")
        running(box, waiting)


class TestHealth:
    SICK = (
        ({"ecc": 2}, "2 uncorrectable memory errors (ECC)", None),
        ({"xid": 79}, "Xid 79: fell off the bus", None),
        ({"limping": 1}, "its memory has more bad rows than it can replace", None),
        ({"celsius": 95}, "too hot: 89 °C reached", {"celsius": 50}),
        ({"slowed": 0x40}, "slowed down by heat", {"slowed": 0}),
        ({"slowed": 0x80}, "slowed down by its power supply", {"slowed": 0}),
        ({"width": 2}, "PCIe has only 2 of 16 lanes", {"width": 16}),
    )

    @pytest.mark.parametrize(("sick", "why", "well"), SICK, ids=lambda value: str(value))
    def test_faulty_gpu_is_drained_with_reason_other_continues(
        self, box: Box, gpus: MockGpus, sick: dict, why: str, well: dict | None
    ):
        up(box, gpus, GFLOW_GPU__DRAIN_AFTER_SECS="1")
        there = box.submit("--gpus", "1", *SLEEP)
        assert running(box, there)["gpu_ids"] == [0]
        change(gpus[0], sick)
        wait_until(lambda: reason(box, 0) == f"Unhealthy: {why}")
        assert box.finished(box.submit("--gpus", "1", "true"))["gpu_ids"] == [1]
        assert box.job(there)["state"] == "Running", "what runs goes on"
        box.ok("gcancel", str(there))
        box.finished(there)
        both = box.submit("--gpus", "2", "true")
        said = f"Need 2 GPUs, only 1 available; GPU 0 is Unhealthy: {why}"
        assert box.job(both)["reason"] == f"Resources: {said}"
        assert f"({box.job(both)['reason']})" in box.ok("gqueue")
        assert f"State: Unhealthy: {why}, idle for" in box.ok("ginfo", "-l")
        assert box.ok("gctl", "show-gpus").startswith(f"0\tunavailable\tUnhealthy: {why}\n1\tidle")
        assert [line.split()[3:4] for line in box.ok("ginfo").splitlines()[1:]] == [["idle"], ["drained"]]
        if well is None:
            box.ok("gctl", "resume", "--gpu", "0")
        else:
            change(gpus[0], well)
        assert box.finished(both)["state"] == "Finished"

    def test_a_programs_own_fault_drains_nothing(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        gpus[0].xid = 31
        wait_until(lambda: gpus[0].xid == 0, what="the daemon to hear of it")
        assert box.finished(box.submit("--gpus", "2", "true"))["state"] == "Finished"

    def test_gpu_fault_is_remembered_until_resume(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        gpus[0].xid = 79
        wait_until(lambda: reason(box, 0) == "Unhealthy: Xid 79: fell off the bus")
        box.kill9()
        up(box, gpus)
        assert reason(box, 0) == "Unhealthy: Xid 79: fell off the bus"
        box.ok("gctl", "resume", "--gpu", "0")
        wait_until(lambda: reason(box, 0) == "")
        box.kill9()
        up(box, gpus)
        assert reason(box, 0) == ""

    def test_gpu_fault_stays_with_its_card_after_renumbering(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        gpus[0].xid = 79
        wait_until(lambda: reason(box, 0) == "Unhealthy: Xid 79: fell off the bus")
        box.down()
        gpus[0].present = 0
        up(box, gpus)
        assert gpu(box, 0)["uuid"].startswith("GPU-00000001") and reason(box, 0) == ""

    def test_gpu_health_thresholds_are_configured(self, box: Box, gpus: MockGpus):
        gpus[1].celsius = 71
        up(
            box,
            gpus,
            GFLOW_GPU__DRAIN_TEMPERATURE="70",
            GFLOW_GPU__DRAIN_XIDS="13",
            GFLOW_GPU__IGNORE_XIDS="79",
        )
        assert reason(box, 1) == "Unhealthy: too hot: 70 °C reached"
        gpus[0].xid = 79
        wait_until(lambda: gpus[0].xid == 0, what="the daemon to hear of it")
        assert reason(box, 0) == ""
        gpus[0].xid = 13
        wait_until(lambda: reason(box, 0) == "Unhealthy: Xid 13")


class TestIdle:
    def test_idle_gpu_is_shown_until_job_uses_it(self, box: Box, gpus: MockGpus):
        up(box, gpus, GFLOW_GPU__IDLE_AFTER_SECS="1")
        number = box.submit("--gpus", "1", *SLEEP)
        wait_until(lambda: (box.job(number)["reason"] or "").startswith("IdleGPU: no process on GPU 0 for "))
        assert box.ok("gqueue", "-f", "NODELIST").splitlines()[1] == "0 (IdleGPU)"
        assert "State: Running (R), IdleGPU: no process on GPU 0 for" in box.ok("gjob", "show", str(number))
        gpus[0].run(pid_of(box, number), 5000)
        wait_until(lambda: (box.job(number)["reason"] or "").startswith("IdleGPU: GPU 0 not used for "))
        gpus[0].busy = 30
        wait_until(lambda: box.job(number)["reason"] is None)
        history = box.ok("gjob", "history", str(number))
        assert "gpus idle        no process on GPU 0 for " in history and "gpus used again" in history
        assert box.job(number)["state"] == "Running", "no setting asks to stop it"
        gpus[1].xid = 79
        wanted = {"job_gpu_idle", "job_gpu_used", "gpu_health_changed"}
        with listening(box, "--after", "0", "--on", ",".join(wanted)) as heard:
            wait_until(lambda: {event["event"] for event in heard()} == wanted, what="the events")

    def test_idle_job_with_stop_if_idle_is_stopped(self, box: Box, gpus: MockGpus):
        gpus[0].busy = 50
        up(box, gpus)
        polite = "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done"
        number = box.submit(
            "--gpus", "1", "--stop-if-idle", "0:02", "--max-retries", "3", "bash", "-c", polite
        )
        gpus[0].run(pid_of(box, number), 5000)
        other = box.submit("--gpus", "1", *SLEEP)
        wait_until(lambda: gpu(box, 0)["holders"] and gpu(box, 0)["holders"][0]["used_mib"] == 5000)
        assert box.job(number)["state"] == "Running"
        gpus[0].busy = 0
        end = box.finished(number)
        assert end["state"] == "Cancelled" and end["attempt"] == 1
        assert end["reason"].startswith("IdleGPU: GPU 0 not used for ")
        assert "saved" in box.text_of(number), "TERM first"
        why = box.ok("gjob", "why", str(number))
        assert "\nCause: The job was stopped because its GPUs were idle: GPU 0 not used for " in why, why
        assert box.job(other)["state"] == "Running"
        assert f"({end['reason']})" in box.ok("gqueue", "-a")

    def test_job_with_one_busy_gpu_names_the_idle_one(self, box: Box, gpus: MockGpus):
        gpus[0].busy = 50
        up(box, gpus, GFLOW_GPU__IDLE_AFTER_SECS="1", GFLOW_GPU__STOP_IDLE_SECS="2")
        number = box.submit("--gpus", "2", *SLEEP)
        gpus[0].run(pid_of(box, number), 5000)
        wait_until(lambda: (box.job(number)["reason"] or "") == "IdleGPU: no process on GPU 1 for 4 s")
        assert box.job(number)["state"] == "Running"
        gpus[0].busy = 0
        assert box.finished(number)["reason"].startswith("IdleGPU: GPU 0,1 not used for ")

    def test_unobserved_time_is_not_idle_time(self, box: Box, gpus: MockGpus):
        gpus[0].busy = 50
        up(box, gpus, GFLOW_GPU__STOP_IDLE_SECS="3", GFLOW_GPU__PATIENCE_S="1")
        number = box.submit("--gpus", "1", *SLEEP)
        gpus[0].run(pid_of(box, number), 5000)
        wait_until(lambda: gpu(box, 0)["holders"] and gpu(box, 0)["holders"][0]["used_mib"] == 5000)
        gpus[0].busy, gpus[0].error = 0, LOST
        wait_until(lambda: reason(box, 0).startswith("Lost"))
        lost = time.monotonic()
        wait_until(lambda: time.monotonic() - lost > 4)
        assert box.job(number)["state"] == "Running"
        gpus[0].error = 0
        assert box.finished(number)["reason"].startswith("IdleGPU: GPU 0 not used for ")

    def test_job_without_gpus_is_not_idle(self, daemon: Box):
        refused = daemon.run("gbatch", "--stop-if-idle", "30", "true")
        assert refused.returncode == 2 and "--stop-if-idle needs --gpus" in refused.stderr
        number = daemon.submit("--gpus", "1", *SLEEP)
        daemon.ok("gjob", "update", str(number), "--stop-if-idle", "30")
        assert daemon.job(number)["stop_if_idle_s"] == 1800


class TestSharing:
    def test_shared_job_over_its_gpu_memory_is_killed_alone(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        hog, victim = shared(box, "20G"), shared(box, "20G")
        assert running(box, hog)["gpu_ids"] == running(box, victim)["gpu_ids"]
        gpus[0].run(pid_of(box, victim), 20000)
        gpus[0].run(pid_of(box, hog), 19000)
        wait_until(lambda: [one["used_mib"] for one in gpu(box, 0)["holders"]] == [19000, 20000])
        gpus[0].run(pid_of(box, hog), 30000)
        end = box.finished(hog)
        assert end["state"] == "Failed"
        assert end["reason"] == "GpuMemory: used 29.3 GiB of 20 GiB on GPU 0"
        assert box.job(victim)["state"] == "Running"

    def test_growing_shared_job_is_stopped_before_others_lack_memory(self, box: Box, gpus: MockGpus):
        """Both take memory as CUDA programs do, from a stand-in for the driver."""
        up(box, gpus)
        program = (sys.executable, str(Path(__file__).parents[1] / "gpu/programs.py"))
        words = box.root / "words"
        words.mkdir()
        more = {"env": gpus.env}
        ask = ("--gpus", "1", "--shared", "--gpu-memory")
        victim = box.submit(*ask, "12G", *program, "victim", str(words), "6", **more)
        hog = box.submit(*ask, "4G", *program, "hog_raw", str(words), "h", "4", "79", "0.02", **more)
        wait_until(lambda: (words / "victim.up").exists() and (words / "h.up").exists())
        (words / "h.go").touch()
        assert box.finished(hog)["reason"].startswith("GpuMemory: used ")
        (words / "victim.stop").touch()
        assert box.finished(victim)["state"] == "Finished"
        assert "refused" not in (words / "victim.log").read_text()

    def test_all_processes_of_a_job_count_together(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        number = shared(box, "20G", "bash", "-c", "sleep 600 & sleep 601 & wait")
        children = wait_until(
            lambda: (
                (
                    found := subprocess.run(
                        ["pgrep", "-P", str(pid_of(box, number))], capture_output=True, text=True
                    ).stdout.split()
                )
                and len(found) == 2
                and found
            )
        )
        for child in children:
            gpus[0].run(int(child), 11000)
        assert box.finished(number)["reason"].startswith("GpuMemory: used 21.")

    def test_a_job_that_has_its_gpu_alone_may_use_all_of_it(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        number = box.submit("--gpus", "1", "--gpu-memory", "1G", *SLEEP)
        gpus[0].run(pid_of(box, number), 70000)
        wait_until(lambda: gpu(box, 0)["holders"] and gpu(box, 0)["holders"][0]["used_mib"] == 70000)
        assert box.job(number)["state"] == "Running"

    def test_gpu_memory_watch_continues_after_a_restart(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        number = shared(box, "20G")
        pid = pid_of(box, number)
        box.kill9()
        up(box, gpus)
        gpus[0].run(pid, 30000)
        assert box.finished(number)["reason"].startswith("GpuMemory")


def test_daemon_ends_while_the_driver_hangs(box: Box, gpus: MockGpus):
    up(box, gpus)
    gpus.machine.hang = 1
    box.down()
    assert not os.path.exists(box.socket)


class TestWords:
    SHOW = "echo $XLA_PYTHON_CLIENT_MEM_FRACTION $TF_FORCE_GPU_ALLOW_GROWTH $PYTORCH_CUDA_ALLOC_CONF"

    def torch(self, box: Box) -> Path:
        folder = box.root / "venv"
        (folder / "bin").mkdir(parents=True)
        for name in ("python3", "python"):  # or that of the tests would be looked at, too
            (folder / "bin" / name).touch(mode=0o755)
        library = folder / "lib/python3.12/site-packages/torch/lib/libc10_cuda.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"per_process_memory_fraction")
        return folder

    def test_shared_jobs_get_framework_memory_fraction(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        number = box.submit(
            "--gpus", "1", "--shared", "--gpu-memory", "20G", "--venv", str(self.torch(box)),
            "bash", "-c", self.SHOW, env={"PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
        )  # fmt: skip
        box.finished(number)
        assert box.text_of(number) == "0.2433 true backend:native,per_process_memory_fraction:0.2433\n"
        alone = box.submit("--gpus", "1", "bash", "-c", self.SHOW)
        box.finished(alone)
        assert box.text_of(alone) == "\n"

    def test_a_job_cancelled_while_its_python_is_looked_at(self, daemon: Box):
        """Whichever comes first, it ends, and the next one of its kind runs."""
        for _ in range(3):
            number = daemon.submit(
                "--gpus", "1", "--shared", "--gpu-memory", "1G", "sleep", "600",
                env={"PATH": f"{daemon.env['PATH']}:/{_}"},
            )  # fmt: skip
            daemon.ok("gcancel", str(number))
            assert daemon.finished(number)["state"] == "Cancelled"

    def test_missing_mps_is_reported_and_sharing_works(self, box: Box, gpus: MockGpus):
        up(box, gpus, GFLOW_GPU__MPS="true")
        assert "no MPS (nvidia-cuda-mps-control is not installed)" in box.ok("ginfo", "-l")
        assert running(box, shared(box, "20G"))


class TestHistory:
    def test_gpu_usage_of_a_job_is_shown(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        gpus[0].busy, gpus[0].celsius = 87, 66
        number = box.submit("--gpus", "1", *SLEEP)
        gpus[0].run(pid_of(box, number), 5000)
        wait_until(
            lambda: (box.api("GET", f"/jobs/{number}/usage")[1]["totals"] or [{}])[0].get("memory_mib")
        )
        box.ok("gcancel", str(number))
        box.finished(number)
        wait_until(lambda: len(box.api("GET", f"/jobs/{number}/usage")[1]["samples"]) > 2)
        page = box.ok("gjob", "usage", str(number))
        assert "5000 MiB" in page and "GPU 0 busy" in page
        assert "GPU use: 87% busy (peak 87%), peak memory 4.9 GiB, 70 W" in box.ok(
            "gjob", "show", str(number)
        )
        assert box.ok("gjob", "usage", "--csv", str(number)).startswith("at,gpu,span_s,busy,")
        assert "no GPU history" in box.ok("gjob", "usage", str(box.submit("true")))

    def test_gpu_memory_auto_follows_earlier_runs(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        auto = ("--gpus", "1", "--gpu-memory", "auto")
        refused = box.run("gbatch", *auto, "--shared", *SLEEP)
        assert refused.returncode == 1 and "no earlier run of this command is known" in refused.stderr
        first = box.run("gbatch", *auto, *SLEEP)
        assert first.stdout == "Submitted batch job 1\n", "one number, for scripts"
        said = "--gpu-memory auto: no earlier run of this command is known, so any GPU will do\n"
        assert first.stderr == f"gbatch: {said}"
        assert "GPU memory: auto: no earlier run" in box.ok("gjob", "show", "1")
        gpus[0].run(pid_of(box, 1), 5000)
        wait_until(lambda: (box.api("GET", "/jobs/1/usage")[1]["totals"] or [{}])[0].get("memory_mib"))
        box.ok("gcancel", "1")
        box.finished(1)
        figure = "5.5 GiB on each GPU; the earlier run used 4.883 GiB at most"
        assert f"auto: {figure}" in box.ok("gbatch", "--dry-run", *auto, *SLEEP)
        second = box.run("gbatch", *auto, "--shared", *SLEEP)
        assert (second.stdout, second.stderr) == (
            "Submitted batch job 2\n",
            f"gbatch: --gpu-memory auto: {figure}\n",
        )
        assert box.job(2)["gpu_memory_mib"] == 5632
        shown = "GPU memory: 5.5 GiB (auto: the earlier run used 4.883 GiB at most)\n"
        assert shown in box.ok("gjob", "show", "2")
        assert box.run("gbatch", *auto, "--shared", "sleep", "601").returncode == 1, "another command"
        again = box.run("gjob", "redo", "1", "--gpu-memory", "auto")
        assert again.returncode == 0 and figure in again.stderr
        assert box.job(3)["gpu_memory_mib"] == 5632
        box.ok("gjob", "redo", "3", "--gpu-memory", "7G")
        assert (box.job(4)["gpu_memory_mib"], box.job(4)["gpu_memory_from"]) == (7168, None)
        assert box.run("gjob", "update", "4", "--gpu-memory", "auto").returncode == 2

    def test_predicted_gpu_memory_is_shown_beside_measured(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        plan = box.root / "plan.json"
        plan.write_text(json.dumps({"gpu": "X", "chosen": {"gpus": 1, "bytes": 6000 << 20}}))
        auto = ("--gpus", "1", "--gpu-memory", "auto", "--fit", str(plan))
        first = box.run("gbatch", *auto, "--shared", *SLEEP)
        said = "6.5 GiB on each GPU; 5.859 GiB were predicted"
        assert first.stderr == f"gbatch: --gpu-memory auto: {said}\n"
        assert (box.job(1)["gpu_memory_mib"], box.job(1)["gpu_memory_predicted_mib"]) == (6656, 6000)
        assert "Predicted: 5.859 GiB on each GPU\n" in box.ok("gjob", "show", "1")
        gpus[0].run(pid_of(box, 1), 5000)
        wait_until(lambda: (box.api("GET", "/jobs/1/usage")[1]["totals"] or [{}])[0].get("memory_mib"))
        shown = "Predicted: 5.859 GiB on each GPU; measured peak 4.883 GiB: 20.0 % too high\n"
        assert shown in box.ok("gjob", "show", "1")
        box.ok("gbatch", "--gpus", "1", "--fit", str(plan), *SLEEP)
        assert box.job(2)["gpu_memory_mib"] is None, "a prediction alone is no need"
        figures = json.loads(box.ok("gstats", "--predictions", "--json"))
        assert [(job["id"], job["measured_mib"], job["error_percent"]) for job in figures["jobs"]] == [
            (1, 5000, 20.0),
            (2, None, None),
        ]
        assert (figures["measured_jobs"], figures["too_low_jobs"]) == (1, 0)
        told = "2 predicted, 1 measured; error: median 20.0 %, p90 20.0 %, worst 20.0 %; 0 predicted too low"
        assert told in box.ok("gstats", "--predictions")
        rows = box.ok("gstats", "--predictions", "-o", "csv").splitlines()
        assert len(rows) == 3 and rows[1].endswith("6000,5000,20.0")

    def test_gflow_gpus_watch_repeats_readings(self, box: Box, gpus: MockGpus):
        up(box, gpus)
        lines = box.ok("gflow", "gpus", "watch", "--csv", "-n", "1", "-c", "2").splitlines()
        assert lines[0].startswith("time,gpu,busy,memory_mib") and len(lines) == 5
        assert box.run("gflow", "gpus", "watch", "--csv", "--json").returncode == 2
