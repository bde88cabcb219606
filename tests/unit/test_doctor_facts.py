"""The doctor reads facts from files, which are fake here, and from machines that lack nearly everything."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from gflow.client.doctor import (
    cuda_facts,
    daemon_facts,
    driver_facts,
    host_facts,
    machine_facts,
    python_facts,
)
from gflow.config.load import load
from gflow.diagnosis.doctor.facts import DaemonFacts, LibraryFolder, Pin, Toolkit

TORCH = """__version__ = '2.6.0+cu124'
debug = False
cuda: Optional[str] = '12.4'
"""
METADATA = """Metadata-Version: 2.1
Name: torch
Requires-Dist: filelock
Requires-Dist: nvidia-nccl-cu12==2.21.5; platform_system == "Linux"
Requires-Dist: nvidia-cudnn-cu12 (==9.1.0.70) ; platform_system == 'Linux'
Requires-Dist: triton==3.2.0; platform_system == "Windows"
Requires-Dist: numpy==1.0; extra == "old"

Requires-Dist: nvidia-cublas-cu12==1
"""


@pytest.fixture
def site(tmp_path):
    """A folder of packages: torch 2.6 with the right NCCL and an old cuDNN."""
    folder = tmp_path / "site-packages"
    for name in ("torch-2.6.0+cu124", "nvidia_nccl_cu12-2.21.5", "nvidia_cudnn_cu12-8.9.7", "left_pad-1.0"):
        (folder / f"{name}.dist-info").mkdir(parents=True)
    (folder / "torch-2.6.0+cu124.dist-info/METADATA").write_text(METADATA)
    (folder / "torch").mkdir()
    (folder / "torch/version.py").write_text(TORCH)
    return folder


def python_with(tmp_path, folders, text=""):
    program = tmp_path / "python3"
    program.write_text(
        f"#!/bin/sh\necho '{text or json.dumps(['3.12.3', '/venv', list(map(str, folders))])}'\n"
    )
    program.chmod(0o755)
    return str(program)


def test_packages_cuda_and_broken_pins_of_a_python_are_read_from_files(tmp_path, site) -> None:
    (tmp_path / "libnccl.so.2").touch()
    found = python_facts.read_python(python_with(tmp_path, ["", site]), {"LD_LIBRARY_PATH": str(tmp_path)})
    assert (found.version, found.torch_cuda) == ("3.12.3", "12.4")
    assert found.library_folders == (LibraryFolder(str(tmp_path), ("libnccl.so.2",)),)
    assert found.packages == {
        "torch": "2.6.0+cu124",
        "nvidia_nccl_cu12": "2.21.5",
        "nvidia_cudnn_cu12": "8.9.7",
    }
    assert found.pins == (Pin("torch", "nvidia-cudnn-cu12", "9.1.0.70", "8.9.7"),)


def test_torch_that_hides_another_is_noticed(tmp_path, site) -> None:
    first = tmp_path / "local"
    (first / "torch").mkdir(parents=True)
    (first / "torch/version.py").write_text("__version__ = '2.1.0'\ncuda = None\n")
    found = python_facts.read_python(python_with(tmp_path, [first, site]), {})
    assert found.torch_folders == (str(first), str(site)) and found.torch_cuda == ""


def test_python_that_prints_nonsense_is_named_in_trouble(tmp_path) -> None:
    found = python_facts.read_python(python_with(tmp_path, [], "pyenv: version not found"), {})
    assert found.trouble and not found.packages


def test_python_of_the_virtual_environment_is_read() -> None:
    found = python_facts.read_python(sys.executable)
    assert found.version == sys.version.split()[0] and not found.trouble


def test_toolkits_are_found_once_and_the_newest_first(tmp_path) -> None:
    for version in ("11.8", "12.4"):
        (tmp_path / f"cuda-{version}").mkdir()
    (tmp_path / "cuda-12.4/version.json").write_text('{"cuda": {"version": "12.4.1"}}')
    (tmp_path / "cuda-11.8/version.txt").write_text("CUDA Version 11.8.0\n")
    (tmp_path / "cuda").symlink_to("cuda-12.4")
    found = cuda_facts.find_toolkits([], (f"{tmp_path}/cuda-*", f"{tmp_path}/cuda"))
    assert [one.version for one in found] == ["12.4", "11.8"]
    assert found[0] == Toolkit(f"{tmp_path}/cuda-12.4", "12.4")
    assert cuda_facts.nvcc_version("Cuda compilation tools, release 12.4, V12.4.131") == "12.4"


def test_missing_cuda_home_is_noticed(tmp_path) -> None:
    found = cuda_facts.read_cuda({"CUDA_HOME": f"{tmp_path}/gone", "PATH": str(tmp_path)})
    assert found.is_home_missing and not found.nvcc


def test_xids_are_read_from_the_kernel_log() -> None:
    text = "[ 1.0] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus\nother\n"
    assert driver_facts.parse_xids(text + text.replace("79", "31")) == (79, 31)


def test_gpus_on_the_bus_and_nouveau_are_found(tmp_path) -> None:
    for name, vendor, kind in (
        ("a", "0x10de", "0x030200"),
        ("b", "0x10de", "0x040300"),
        ("c", "0x8086", "0x030000"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    (tmp_path / "a/driver").symlink_to("../../drivers/nouveau")
    (path,) = driver_facts._on_bus(str(tmp_path))
    assert driver_facts._driver_of(path) == "nouveau" and not driver_facts._driver_of(str(tmp_path / "b"))


def test_meminfo_without_numbers_is_read() -> None:
    assert host_facts.parse_meminfo("MemTotal:  100 kB\nodd\nSwapFree: x kB\n") == {"MemTotal": 100}


def test_schedulers_are_found_by_their_programs() -> None:
    assert host_facts.find_schedulers(iter(["bash", "slurmd", "kubelet"])) == ("Kubernetes", "Slurm")


def test_disk_of_a_missing_folder_is_that_of_the_nearest_existing_one(tmp_path) -> None:
    assert host_facts.existing_folder(f"{tmp_path}/a/b/c") == str(tmp_path)
    assert host_facts.existing_folder("") == ""
    assert host_facts.existing_folder("//.local/share/gflow") == "/"


def test_last_logind_file_decides_about_logout(tmp_path) -> None:
    assert not daemon_facts._kills_at_logout(str(tmp_path))
    (tmp_path / "logind.conf").write_text("[Login]\n#KillUserProcesses=yes\nKillUserProcesses=yes\n")
    assert daemon_facts._kills_at_logout(str(tmp_path))
    (tmp_path / "logind.conf.d").mkdir()
    (tmp_path / "logind.conf.d/50.conf").write_text("[Login]\nKillUserProcesses=no\n")
    assert not daemon_facts._kills_at_logout(str(tmp_path))


def test_configuration_that_others_may_change_or_that_has_readable_secrets_is_noticed(tmp_path) -> None:
    path = tmp_path / "gflow.toml"
    path.write_text('[[notifications.webhooks]]\nurl = "https://example.org"\nsecret = "x"\n')
    path.chmod(0o646)
    config = load({}, {"HOME": str(tmp_path)}, config_file=str(path))
    found = daemon_facts._protection(DaemonFacts(), config)
    assert found.open_configs == found.readable_secrets == (str(path),)
    path.chmod(0o600)
    found = daemon_facts._protection(DaemonFacts(), config)
    assert found.open_configs == found.readable_secrets == ()


def test_unknown_setting_comes_with_the_one_that_was_meant(tmp_path, monkeypatch) -> None:
    (tmp_path / "gflow").mkdir()
    (tmp_path / "gflow/gflow.toml").write_text("[daemon]\ncpuz = 4\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = daemon_facts._configuration(DaemonFacts())
    assert "daemon.cpuz" in found.config_error and "daemon.cpus" in found.config_hint


def test_part_that_hangs_or_fails_leaves_the_others(monkeypatch) -> None:
    monkeypatch.setattr(machine_facts, "PATIENCE_S", 0.2)
    monkeypatch.setattr(machine_facts, "read_driver", lambda: time.sleep(5))
    monkeypatch.setattr(machine_facts, "read_host", lambda: 1 / 0)
    start = time.monotonic()
    found = machine_facts.collect()
    assert time.monotonic() - start < 3
    assert "has not answered" in found.driver.trouble and not found.driver.is_absent
    assert any("the host" in part and "ZeroDivisionError" in part for part in found.late)


def test_facts_are_collected_without_home_account_and_working_folder(monkeypatch, tmp_path) -> None:
    def no_account(*_):
        raise KeyError("uid not found")

    def no_folder():
        raise FileNotFoundError

    for name in ("HOME", "USER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("pwd.getpwuid", no_account)
    monkeypatch.setattr(os, "getcwd", no_folder)
    found = machine_facts.collect()
    assert found.late == () and not found.python.executable and found.host.memory_mib
