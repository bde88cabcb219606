"""`gflow doctor` as a user types it: without a daemon, in a bare environment, for the jobs of a daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_mock import MockGpus
from tests.harness import BIN, Box, wait_until


def checks(box: Box, *words: str) -> dict[str, str]:
    """The levels of all checks by name; the worst of equal names."""
    done = box.run("gflow", "doctor", "--json", *words)
    assert "Traceback" not in done.stderr, done.stderr
    answer = json.loads(done.stdout)
    assert done.returncode == (answer["worst"] == "problem")
    found: dict[str, str] = {}
    for one in answer["checks"]:
        if found.get(one["name"], "ok") == "ok" or one["level"] == "problem":
            found[one["name"]] = one["level"]
    return found


def test_machine_and_jobs_are_checked(box: Box) -> None:
    assert checks(box)["daemon"] == "warning"
    box.up("--simulate-gpus", "2x80G", "--cpus", "2")
    found = checks(box)
    has_gpu = found.get("driver") is not None
    assert (found["daemon"], found["simulated"]) == ("ok", "warning" if has_gpu else "ok")

    box.env |= {"CUDA_LAUNCH_BLOCKING": "1", "SECRET_TOKEN": "hush"}
    child = "env CUDA_VISIBLE_DEVICES=7 sleep 600; true"
    running = box.submit("--gpus", "1", "bash", "-c", child)
    wait_until(
        lambda: checks(box, "--job", str(running)).get("job-devices") == "problem", 20, "its processes"
    )
    page = box.run("gflow", "doctor", "--job", str(running)).stdout
    assert "environment of its process" in page and "CUDA_VISIBLE_DEVICES=7" in page
    assert "CUDA_LAUNCH_BLOCKING=1" in page and "hush" not in page

    given = box.api("GET", f"/jobs/{running}/environment")[1]["variables"]
    assert given["CUDA_LAUNCH_BLOCKING"] == "1" and "SECRET_TOKEN" not in given

    box.ok("gcancel", str(running))
    box.finished(running)
    ended = checks(box, "--job", str(running))
    assert (ended["job-environment"], ended["job-settings"]) == ("ok", "warning")
    program = "import gflow; print(gflow.doctor(int(input()))['checks'][0]['name'])"
    done = subprocess.run([sys.executable, "-c", program], env=box.env, input=str(running), text=True,
                          capture_output=True, check=True)  # fmt: skip
    assert done.stdout == "job-environment\n"


def test_bad_requests_get_one_sentence(box: Box) -> None:
    for words, code, text in (
        (("--job", "1"), 3, "not running"),
        (("--force",), 2, "--force needs --gpu"),
        (("--gpu", "--job", "1"), 2, "do not go together"),
        (("--gpu", "one"), 2, "GPUs are numbers"),
        (("now",), 2, "unexpected argument"),
    ):
        done = box.run("gflow", "doctor", *words)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert text in done.stderr
    if not os.path.exists("/proc/driver/nvidia"):
        done = box.run("gflow", "doctor", "--gpu")
        assert done.returncode == 1 and "there is no GPU to test" in done.stderr


def test_array_is_refused_with_the_name_of_a_task(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G", "--cpus", "2")
    job = box.submit("--array", "1-3", "--hold", "true")
    done = box.run("gflow", "doctor", "--job", str(job))
    assert done.returncode == 1 and f"--job {job}_1" in done.stderr


def test_bare_environment_without_home_and_working_folder_has_no_traceback(tmp_path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec env -i {BIN}/gflow doctor"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr
    assert "HOME is not set" in done.stdout


BARE = """set -e
mount -t tmpfs tmpfs {root}
cd {root}
mkdir usr {folders}
for name in bin lib lib64 sbin; do ln -s usr/$name $name; done
mount --rbind /usr usr
for folder in {folders}; do mount --rbind /$folder $folder; done
mount -o remount,ro tmpfs {root}
exec chroot {root} /usr/bin/env -i PYTHONDONTWRITEBYTECODE=1 {command}
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_machine_without_proc_sys_and_dev_has_no_traceback(tmp_path) -> None:
    folders = {os.path.realpath(path).split("/")[1] for path in (BIN, sys.base_prefix, __file__)} - {"usr"}
    root = tmp_path / "root"
    root.mkdir()
    script = BARE.format(root=root, folders=" ".join(folders), command=f"{BIN}/gflow doctor")
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=30,
                          check=False)  # fmt: skip
    if done.stderr.startswith(("mount: ", "unshare: ")):
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.stderr == "" and done.returncode == 1
    assert "there is no /dev/shm" in done.stdout


PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then echo '["3.12.3", "/venv", ["{site}"]]'; exit; fi
echo "$CUDA_VISIBLE_DEVICES" >> {site}/tested
echo '{{"torch": "2.6.0", "cuda": "12.4", "nccl": "2.21.5", "cudnn": 90100}}'
echo '{{"begin": "bf16", "gpus": [0]}}'
echo '{{"name": "bf16", "gpus": [0], "value": 150.0}}'
echo '{{"end": true}}'
"""


def install_torch(box: Box, folder: Path) -> Path:
    """A python3, first on PATH, whose torch is for CUDA 12.4 and whose self-test measures 150 TFLOPS."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/version.py").write_text("__version__ = '2.6.0'\ncuda: Optional[str] = '12.4'\n")
    (folder / "python3").write_text(PYTHON.format(site=folder))
    (folder / "python3").chmod(0o755)
    box.env["PATH"] = f"{folder}:{box.env['PATH']}"
    return folder / "tested"


def test_gpus_of_a_driver_are_checked_and_only_free_ones_measured(box: Box, tmp_path) -> None:
    gpus = MockGpus(tmp_path / "gpus", 2)
    box.env |= gpus.env | {"GFLOW_LEASE_DIR": str(tmp_path / "leases")}
    tested = install_torch(box, tmp_path / "site")
    gpus[1].ecc = 3
    gpus[1].width = 4
    found = checks(box)
    assert (found["driver"], found["torch"], found["gpu"]) == ("ok", "ok", "ok")
    assert (found["gpu-memory"], found["gpu-pcie"]) == ("problem", "warning")

    box.up("--cpus", "2")
    gpus[1].ecc, gpus[1].width = 0, 16
    job = box.submit("--gpus", "1", "sleep", "600")
    wait_until(lambda: box.job(job)["state"] == "Running", 20, "the job")
    answer = json.loads(box.run("gflow", "doctor", "--gpu", "--json").stdout)
    holder = box.job(job)["gpu_ids"][0]
    free = 1 - holder
    assert answer["self_test"]["skipped"] == [{"gpu": holder, "why": f"job {job} has it"}]
    (figure,) = answer["self_test"]["figures"]
    assert (figure["gpus"], figure["value"], figure["expected"]) == ([free], 150, 312)
    assert tested.read_text() == f"{gpus[free].uuid.decode()}\n"
    (low,) = [one for one in answer["checks"] if one["name"] == "gpu-test-bf16"]
    assert (low["level"], answer["worst"]) == ("warning", "warning")

    done = box.run("gflow", "doctor", "--gpu", str(holder))
    assert done.returncode == 1 and f"job {job} has it" in done.stderr and "--force" in done.stderr
    assert f"GPU {holder}: bf16" in box.run("gflow", "doctor", "--gpu", str(holder), "--force").stdout


def test_mig_slices_are_checked_one_by_one(box: Box, tmp_path) -> None:
    gpus = MockGpus(tmp_path / "gpus", 1)
    gpus.add(1, memory_mib=9728, name="NVIDIA A100 MIG 1g.10gb", parent=0)
    gpus.add(2, memory_mib=9728, name="NVIDIA A100 MIG 1g.10gb", parent=0)
    box.env |= gpus.env
    page = box.run("gflow", "doctor").stdout
    assert "driver" in page and "2 GPUs" in page
    assert "GPU 0: NVIDIA A100 MIG" in page and "GPU 1: NVIDIA A100 MIG" in page
