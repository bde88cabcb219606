"""The self-test of GPUs without a GPU: choice of GPUs, leases, a program that hangs, expected figures."""

from __future__ import annotations

import json
import os

import pytest

from gflow.client.doctor import gpu_self_test
from gflow.client.doctor.gpu_self_test import choose_gpus, run_self_test
from gflow.diagnosis.doctor.facts import DriverFacts, GpuFacts, PythonFacts
from gflow.diagnosis.doctor.self_test import Measurement
from gflow.errors import Refused
from gflow.ml.fit.catalogue import catalogue
from gflow.ml.self_test.expected_figures import find_model, with_expectation
from gflow.targets.local import gpu_leases

H200 = GpuFacts(0, "NVIDIA H200", 143_771, uuid="GPU-a", pcie_generation=5, pcie_most=16)
SECOND = H200._replace(number=1, uuid="GPU-b")
DRIVER = DriverFacts("580.65", (13, 0), gpus=(H200, SECOND))
LINES = [
    {"begin": "import torch", "gpus": []},
    {"torch": "2.11.0", "cuda": "13.0", "nccl": "2.28.9", "cudnn": 91900, "count": 1},
    {"begin": "bf16", "gpus": [0]},
    {"name": "bf16", "gpus": [0], "value": 700.0},
    {"name": "upload", "gpus": [0], "error": "OutOfMemoryError: no memory"},
]


@pytest.fixture(autouse=True)
def own_leases(tmp_path, monkeypatch):
    monkeypatch.setenv("GFLOW_LEASE_DIR", str(tmp_path / "leases"))


def python_that_runs(tmp_path, script: str) -> PythonFacts:
    """A Python with torch, whose test program is a shell script."""
    program = tmp_path / "python3"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return PythonFacts(str(program), "3.12.3", torch_cuda="13.0")


def echo(*lines) -> str:
    return "\n".join(f"echo '{json.dumps(line)}'" for line in lines)


def test_figures_and_errors_of_the_program_are_read_and_its_steps_shown(tmp_path) -> None:
    steps: list[str] = []
    python = python_that_runs(tmp_path, "echo noise\n" + echo(*LINES, {"end": True}))
    found = run_self_test(DRIVER, python, (1,), progress=steps.append)
    assert found.trouble == "" and "NCCL 2.28.9" in found.torch
    assert found.measurements == (
        Measurement("bf16", (1,), 700.0),
        Measurement("upload", (1,), None, "OutOfMemoryError: no memory"),
    )
    assert steps == ["import torch", "GPU 1: bf16 matrix product"]


def test_program_sees_the_free_gpus_by_uuid_and_nothing_else(tmp_path) -> None:
    busy = DRIVER._replace(gpus=(H200._replace(jobs=("42",)), SECOND))
    python = python_that_runs(
        tmp_path, f'echo "$CUDA_VISIBLE_DEVICES" > {tmp_path}/seen\n' + echo({"end": True})
    )
    found = run_self_test(busy, python)
    assert (tmp_path / "seen").read_text() == "GPU-b\n"
    assert [(one.gpu, one.why) for one in found.skipped] == [(0, "job 42 has it")]


def test_step_that_hangs_ends_the_test_and_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gpu_self_test, "STEP_S", 0.3)
    python = python_that_runs(tmp_path, echo(*LINES[:3]) + "\nexec sleep 60")
    found = run_self_test(DRIVER, python, (0,))
    assert found.trouble == "GPU 0: bf16 matrix product takes longer than 0 s"


def test_program_that_dies_is_explained_by_its_last_line(tmp_path) -> None:
    python = python_that_runs(tmp_path, echo(*LINES[:3]) + "\necho 'Segmentation fault' >&2; exit 139")
    assert run_self_test(DRIVER, python, (0,)).trouble.endswith("ended early: Segmentation fault")
    python = python_that_runs(tmp_path, echo({"fatal": "torch cannot use CUDA: no"}) + "\nexit 1")
    assert run_self_test(DRIVER, python, (0,)).trouble == "torch cannot use CUDA: no"


def test_leases_are_held_while_the_test_runs_and_free_afterwards(tmp_path) -> None:
    path = f"{tmp_path}/leases/GPU-a"
    held: list[int | None] = []
    python = python_that_runs(tmp_path, echo(*LINES, {"end": True}))
    run_self_test(DRIVER, python, progress=lambda text: held.append(gpu_leases.holder_of(path)))
    assert held and None not in held
    assert gpu_leases.holder_of(path) is None


def test_gpu_that_another_daemon_holds_is_not_tested(tmp_path) -> None:
    held = gpu_leases.take([f"{gpu_leases.lease_folder()}/GPU-a"])
    try:
        with pytest.raises(Refused, match="GPU 0 is not tested: another gflow daemon has it"):
            run_self_test(DRIVER, python_that_runs(tmp_path, ""), (0,))
    finally:
        gpu_leases.release(held)


def test_gpu_in_use_is_refused_unless_forced() -> None:
    busy = (H200._replace(processes=(7, 8)),)
    with pytest.raises(Refused, match="no GPU is free: GPU 0: process 7, 8 uses it") as refused:
        choose_gpus(busy, (), frozenset({0}), is_forced=False)
    assert "--force" in refused.value.hint
    assert choose_gpus(busy, (0,), frozenset(), is_forced=True)[0] == busy
    with pytest.raises(Refused, match="no usable GPU 5"):
        choose_gpus(busy, (5,), frozenset(), is_forced=True)


def test_job_may_test_its_own_gpus_and_no_others() -> None:
    gpus = (H200._replace(jobs=("42",), processes=(7,)), SECOND)
    chosen, skipped = choose_gpus(gpus, (), frozenset({1}), is_forced=False, own_job="42")
    assert [gpu.number for gpu in chosen] == [0] and not skipped
    with pytest.raises(Refused, match="job 42 has it"):
        choose_gpus(gpus, (0,), frozenset({0, 1}), is_forced=False, own_job="7")


def test_machine_without_gpu_or_torch_gets_one_sentence(tmp_path, monkeypatch) -> None:
    with pytest.raises(Refused, match="there is no GPU to test: no NVIDIA driver"):
        run_self_test(DriverFacts(is_absent=True, trouble="libnvidia-ml.so.1: no such file"), PythonFacts())
    with pytest.raises(Refused, match="there is no GPU to test: the driver hangs"):
        run_self_test(DriverFacts(trouble="the driver hangs"), PythonFacts())
    monkeypatch.setattr("gflow.client.doctor.python_facts.read_python", lambda program: PythonFacts())
    with pytest.raises(Refused, match="needs PyTorch with CUDA, and /usr/bin/python3 has none"):
        run_self_test(DRIVER, PythonFacts("/usr/bin/python3", torch_cuda=""))


@pytest.mark.parametrize(
    ("model", "memory_mib", "name"),
    [
        ("NVIDIA H200", 143_771, "H200"),
        ("NVIDIA A100-SXM4-80GB", 81_920, "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", 40_960, "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", 81_559, "H100-80GB"),
        ("NVIDIA H100 PCIe", 81_559, None),
        ("NVIDIA H100 NVL", 95_830, None),
        ("NVIDIA GeForce RTX 3090", 24_576, "RTX-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", 24_564, None),
        ("Tesla V100-SXM2-16GB", 16_160, "V100-16GB"),
        ("Tesla T4", 15_360, "T4"),
        ("NVIDIA L40S", 46_068, "L40S"),
        ("Unheard of", 1000, None),
    ],
)
def test_model_of_the_driver_is_found_in_the_catalogue(model: str, memory_mib: int, name: str | None) -> None:
    found = find_model(model, memory_mib, catalogue())
    assert (found and found.name) == name


def test_expected_figures_come_from_the_catalogue_and_the_pcie_link() -> None:
    known, gpus = catalogue(), {0: H200._replace(links_up=18), 1: SECOND._replace(links_up=18)}

    def expected(name, numbers=(0,), cards=gpus):
        return with_expectation(Measurement(name, numbers, 1.0), cards, known).expected

    assert expected("bf16") == known["H200"].bf16 and expected("memory") == known["H200"].bandwidth
    assert expected("upload") == pytest.approx(63, abs=0.1)
    assert expected("peer", (0, 1)) == expected("all_reduce", (0, 1)) == known["H200"].nvlink / 2
    assert expected("peer", (0, 1), {0: H200, 1: SECOND}) is None
    assert expected("bf16", cards={0: H200._replace(is_mig=True)}) is None


def test_card_with_a_small_power_budget_is_expected_to_reach_less() -> None:
    card = GpuFacts(0, "Tesla T4", 15_360)
    assert with_expectation(Measurement("fp16", (0,), 26.0), {0: card}, catalogue()).low < 0.4
    assert with_expectation(Measurement("memory", (0,), 26.0), {0: card}, catalogue()).low == 0.6


def test_benchmark_program_is_part_of_the_package_and_says_that_torch_is_missing(tmp_path) -> None:
    import subprocess
    import sys

    assert os.path.exists(gpu_self_test.PROGRAM)
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: no such file')\n")
    done = subprocess.run([sys.executable, gpu_self_test.PROGRAM], capture_output=True, text=True,
                          env={"PYTHONPATH": str(tmp_path)}, check=False)  # fmt: skip
    assert done.returncode == 1 and "libcudart.so.13" in json.loads(done.stdout.splitlines()[-1])["fatal"]
