"""The environment of a job, read from processes and files; some of them are fake."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gflow.client.doctor.job_environment import (
    device_lines,
    examine_job,
    job_processes,
    parse_limits,
)
from gflow.client.doctor.python_facts import library_folders
from gflow.diagnosis.doctor.facts import LibraryFolder, Limits
from gflow.diagnosis.doctor.job_facts import relevant

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max processes             500                  1000                 processes
Max open files            1024                 4096                 files
Max locked memory         65536                65536                bytes
Max address space         unlimited            unlimited            bytes
"""


def job(tmp_path, **changes):
    return {"id": 42, "state": "Running", "gpus": 1, "command": ["python3", "train.py"], "script": None,
            "cwd": str(tmp_path)} | changes  # fmt: skip


def test_only_variables_for_the_diagnosis_are_read() -> None:
    environ = b"PATH=/bin\0HF_TOKEN=secret\0AWS_SECRET_ACCESS_KEY=x\0NCCL_DEBUG=INFO\0odd\0=C:\0"
    assert relevant(environ) == {"PATH": "/bin", "NCCL_DEBUG": "INFO"}


def test_processes_of_a_job_are_those_of_this_daemon_and_the_oldest_is_first(tmp_path) -> None:
    def process(pid, started, *variables):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "environ").write_bytes("".join(f"{one}\0" for one in variables).encode())
        (folder / "stat").write_text(f"{pid} (a) b) S " + " ".join(["1"] * 18) + f" {started} 0")

    process(30, 200, "GFLOW_JOB_ID=42", "GFLOW_PROGRESS=/run/gflow/progress.sock")
    process(40, 100, "GFLOW_PROGRESS=/run/gflow/progress.sock", "GFLOW_JOB_ID=42")
    process(50, 100, "GFLOW_JOB_ID=42", "GFLOW_PROGRESS=/other/progress.sock")
    process(60, 100, "GFLOW_JOB_ID=421", "GFLOW_PROGRESS=/run/gflow/progress.sock")
    (tmp_path / "self").mkdir()
    found = job_processes("42", "/run/gflow/gflowd.sock", str(tmp_path))
    assert [pid for pid, _ in found] == [40, 30]


def test_limits_of_a_process_are_read_hard_for_open_files_and_soft_for_others() -> None:
    assert parse_limits(LIMITS) == Limits(open_files=4096, locked_memory=65536, processes=500)
    assert parse_limits("") == Limits()


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("export CUDA_VISIBLE_DEVICES=0,1", True),
        ("CUDA_VISIBLE_DEVICES=3 python train.py", True),
        ('os.environ["CUDA_VISIBLE_DEVICES"] = "0"', True),
        ("bash -c 'CUDA_VISIBLE_DEVICES=1 true'", True),
        ("# CUDA_VISIBLE_DEVICES=0", False),
        ("echo $CUDA_VISIBLE_DEVICES", False),
        ("export CUDA_VISIBLE_DEVICES=$GFLOW_GPUS", False),
        ('os.environ["CUDA_VISIBLE_DEVICES"] == "0"', False),
    ],
)
def test_lines_that_assign_devices_are_found(line: str, is_found: bool) -> None:
    assert bool(device_lines([], line)) is is_found
    assert bool(device_lines([line], "")) is is_found


def test_folders_with_cuda_libraries_are_found(tmp_path) -> None:
    (tmp_path / "libnccl.so.2").touch()
    (tmp_path / "libother.so").touch()
    (tmp_path / "empty").mkdir()
    found = list(library_folders(f"{tmp_path}:{tmp_path}/empty::/nowhere:{tmp_path}"))
    assert found == [LibraryFolder(str(tmp_path), ("libnccl.so.2",))]


def test_environment_of_a_running_process_is_read(tmp_path) -> None:
    environ = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "0", "VIRTUAL_ENV": "/gone"}
    words = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()  # the kernel shows the environment after exec
        found = examine_job(job(tmp_path), {"CUDA_VISIBLE_DEVICES": "5"}, [process.pid])
        process.communicate(b"\n")
    assert (found.pid, found.own_devices, found.submitted_devices) == (process.pid, "0", "5")
    assert found.python.executable == sys.executable and found.python.version
    assert found.missing_folders == ("/gone",) and found.disk and found.limits


def test_submitted_environment_is_used_for_a_job_that_does_not_run(tmp_path) -> None:
    (tmp_path / "train.py").write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\n")
    found = examine_job(job(tmp_path, state="Queued"), {"PATH": os.path.dirname(sys.executable)}, [])
    assert found.pid is None and not found.trouble and found.limits is None
    assert found.python.executable == f"{os.path.dirname(sys.executable)}/python3"
    assert len(found.device_lines) == 1


def test_environment_that_is_not_kept_and_folder_that_is_gone_are_named(tmp_path) -> None:
    found = examine_job(job(tmp_path, state="Finished", cwd=f"{tmp_path}/gone"), None, [])
    assert found.trouble and found.disk is None
