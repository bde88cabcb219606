"""The doctor: every finding is provoked by facts that have it, and a sound machine has none."""

from __future__ import annotations

import json

import pytest

from gflow.diagnosis.doctor.checks import check_all
from gflow.diagnosis.doctor.facts import (
    DaemonFacts,
    Disk,
    DriverFacts,
    Facts,
    GpuFacts,
    HostFacts,
    PythonFacts,
)
from gflow.diagnosis.doctor.report import Level

GPU = GpuFacts(0, "NVIDIA A100-SXM4-80GB", 81920, compute_capability="8.0", ecc_errors=0, pcie_width=16,
               pcie_most=16, has_persistence=True, compute_mode=0, power_limit_w=400,
               power_usual_w=400)  # fmt: skip
DRIVER = DriverFacts("550.54", (12, 4), gpus=(GPU,))
PYTHON = PythonFacts("/venv/bin/python3", {"torch": "2.6.0+cu124"}, "12.4")
DISK = Disk("home", "/home", 200_000, 500_000, 10**6)
HOST = HostFacts(shm_mib=64_000, memory_mib=256_000, open_files=65536, locked_memory=-1, processes=-1,
                 inotify_watches=524288, disks=(DISK,), cgroup_version=2,
                 cgroup_controllers=("cpu", "memory", "pids"), is_clock_synchronized=True)  # fmt: skip
DAEMON = DaemonFacts(is_running=True, version="1", client_version="1")
SOUND = Facts(DRIVER, PYTHON, HOST, DAEMON)
WARNING, PROBLEM = Level.WARNING, Level.PROBLEM


def with_gpu(**changes):
    return SOUND._replace(driver=DRIVER._replace(gpus=(GPU._replace(**changes),)))


def with_driver(**changes):
    return SOUND._replace(driver=DRIVER._replace(**changes))


def with_host(**changes):
    return SOUND._replace(host=HOST._replace(**changes))


def with_daemon(**changes):
    return SOUND._replace(daemon=DAEMON._replace(**changes))


CASES = [
    (with_driver(is_absent=True), "driver", WARNING),
    (with_driver(trouble="NVML: Driver/library version mismatch"), "driver", PROBLEM),
    (with_driver(closed_devices=("/dev/nvidia0",)), "gpu-access", PROBLEM),
    (with_driver(xids=(31, 31, 79)), "xid", WARNING),
    (with_gpu(problem="GPU is lost"), "gpu-lost", PROBLEM),
    (with_gpu(is_remapping_failed=True), "gpu-memory", PROBLEM),
    (with_gpu(ecc_errors=3), "gpu-memory", PROBLEM),
    (with_gpu(is_remapping_pending=True), "gpu-memory", WARNING),
    (with_gpu(throttled=0x40, temperature=92), "gpu-heat", WARNING),
    (with_gpu(throttled=0x80), "gpu-power", WARNING),
    (with_gpu(pcie_width=4), "gpu-pcie", WARNING),
    (with_gpu(has_persistence=False), "gpu-persistence", WARNING),
    (with_gpu(compute_mode=2), "gpu-mode", PROBLEM),
    (with_gpu(compute_mode=3), "gpu-mode", WARNING),
    (with_gpu(power_limit_w=200), "gpu-power", WARNING),
    (with_gpu(foreign=(4242,)), "gpu-foreign", WARNING),
    (with_driver(version="520.10"), "torch-driver", PROBLEM),
    (with_gpu(compute_capability="12.0"), "torch-gpu", PROBLEM),
    (SOUND._replace(python=PYTHON._replace(torch_cuda="13.0"),
                    driver=DRIVER._replace(version="580.70", gpus=(GPU._replace(compute_capability="7.0"),))),
     "torch-gpu", PROBLEM),
    (SOUND._replace(python=PYTHON._replace(torch_cuda="")), "torch-cuda", PROBLEM),
    (with_host(shm_mib=None), "shm", PROBLEM),
    (with_host(shm_mib=64), "shm", WARNING),
    (with_host(open_files=1024), "open-files", WARNING),
    (with_host(locked_memory=64 << 10), "locked-memory", WARNING),
    (with_host(processes=100), "processes", WARNING),
    (with_host(inotify_watches=8192), "inotify", WARNING),
    (with_host(swap_mib=8000, swap_used_mib=7000), "swap", WARNING),
    (with_host(disks=(DISK._replace(free_mib=100),)), "disk", PROBLEM),
    (with_host(disks=(DISK._replace(free_mib=10_000),)), "disk", WARNING),
    (with_host(disks=(DISK._replace(free_inodes=3),)), "inodes", PROBLEM),
    (with_host(cgroup_controllers=()), "cgroup", WARNING),
    (with_host(is_clock_synchronized=False), "clock", WARNING),
    (with_host(other_schedulers=("Slurm",)), "scheduler", WARNING),
    (with_daemon(config_error="gflow.toml: unknown setting"), "config", PROBLEM),
    (with_daemon(is_running=False), "daemon", WARNING),
    (with_daemon(is_read_only=True, detail="the disk is full"), "daemon", PROBLEM),
    (with_daemon(version="0"), "version", WARNING),
    (with_daemon(is_simulated=True), "simulated", WARNING),
    (with_daemon(drained="maintenance"), "drained", WARNING),
    (with_daemon(has_service=True, lingers=False), "linger", WARNING),
    (with_daemon(slurm_client=""), "slurm", PROBLEM),
]  # fmt: skip


def test_sound_machine_has_no_findings() -> None:
    assert [one for one in check_all(SOUND) if one.level is not Level.OK] == []


@pytest.mark.parametrize(
    ("facts", "name", "level"), CASES, ids=[f"{case[1]}-{case[2].name}" for case in CASES]
)
def test_finding_is_provoked_alone_and_has_a_fix(facts: Facts, name: str, level: Level) -> None:
    (found,) = [one for one in check_all(facts) if one.level is not Level.OK]
    assert (found.name, found.level) == (name, level)
    assert found.fix


def test_doctor_prints_json_and_its_exit_code_says_problem(capsys, monkeypatch) -> None:
    from gflow.cli.tools import doctor

    monkeypatch.setattr(doctor, "collect", lambda: with_host(shm_mib=None))
    assert doctor.run(["--json", "--quiet"]) == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert check["name"] == "shm" and check["level"] == "problem" and check["fix"]


def test_doctor_page_fits_80_columns(capsys, monkeypatch) -> None:
    from gflow.cli.tools import doctor

    monkeypatch.setattr(doctor, "collect", lambda: with_driver(version="520.10"))
    doctor.run([])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_facts_of_this_machine_are_collected() -> None:
    from gflow.client.machine_facts import collect

    facts = collect()
    assert facts.host.memory_mib > 0 and facts.host.disks and facts.python.executable
