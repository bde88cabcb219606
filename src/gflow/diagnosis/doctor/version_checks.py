"""Checks whether driver, CUDA, PyTorch, NCCL and cuDNN fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gflow.diagnosis.doctor.compatibility import (
    capability_rule,
    least_capability,
    oldest_driver,
    version_of,
)
from gflow.diagnosis.doctor.facts import CudaFacts, DriverFacts, Facts, GpuFacts, PythonFacts
from gflow.diagnosis.doctor.report import CheckResult, ok, problem, warning

UNSET = "unset LD_LIBRARY_PATH: torch brings its own libraries"
# The folder of PyTorch's wheels that run on every driver of a major version of CUDA.
WHEELS_FOR = {11: "cu118", 12: "cu126", 13: "cu130"}


def check_python(facts: Facts) -> Iterator[CheckResult]:
    python = facts.python
    if not python.executable:
        yield warning(
            "python", "there is no python3 on PATH", "apt install python3, or activate an environment"
        )
    elif python.trouble:
        yield warning(
            "python", f"{python.executable} does not run: {python.trouble}", f"{python.executable} -V"
        )
    else:
        yield ok("python", f"{python.executable}, Python {python.version}")


def check_versions(facts: Facts) -> Iterator[CheckResult]:
    """Whether PyTorch's CUDA fits the driver and the GPUs."""
    python, driver = facts.python, facts.driver
    torch = python.packages.get("torch")
    if torch is None:
        if python.executable:
            yield ok("torch", f"no PyTorch in the environment of {python.executable}: not checked")
        return
    if not python.torch_cuda:
        yield _cpu_build(torch, driver)
        return
    cuda = version_of(python.torch_cuda)
    yield from _check_driver_age(cuda, torch, driver)
    for gpu in driver.gpus:
        yield from _check_capability(cuda, torch, gpu)
    yield from _check_wheels(python, cuda)


def _cpu_build(torch: str, driver: DriverFacts) -> CheckResult:
    if not driver.gpus:
        return ok("torch", f"torch {torch} (CPU build)")
    index = WHEELS_FOR.get(driver.cuda[0] if driver.cuda else 0, "cu126")
    return problem(
        "torch-cuda",
        f"torch {torch} is a CPU build, and this machine has GPUs",
        f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{index}",
    )


def _check_driver_age(cuda: tuple[int, int], torch: str, driver: DriverFacts) -> Iterator[CheckResult]:
    if not driver.version:
        yield ok("torch", f"torch {torch} with CUDA {cuda[0]}.{cuda[1]}")
        return
    oldest = oldest_driver(cuda)
    if oldest and version_of(driver.version) < oldest:
        newest = f"CUDA {driver.cuda[0]}" if driver.cuda else f"CUDA {cuda[0] - 1}"
        yield problem(
            "torch-driver",
            f"torch {torch} uses CUDA {cuda[0]}.{cuda[1]}, which needs driver {oldest[0]}.{oldest[1]} or"
            f" newer; this one is {driver.version}",
            f"update the driver, or install torch for {newest}",
        )
    else:
        yield ok("torch", f"torch {torch} with CUDA {cuda[0]}.{cuda[1]} fits driver {driver.version}")


def _check_capability(cuda: tuple[int, int], torch: str, gpu: GpuFacts) -> Iterator[CheckResult]:
    if not gpu.compute_capability:
        return
    capability = version_of(gpu.compute_capability)
    here = f"GPU {gpu.number} ({gpu.model}, sm_{capability[0]}{capability[1]})"
    rule, least = capability_rule(capability), least_capability(version_of(torch), cuda)
    if rule and cuda < rule.first_cuda:
        first = f"{rule.first_cuda[0]}.{rule.first_cuda[1]}"
        yield problem(
            "torch-gpu",
            f"torch {torch} (CUDA {cuda[0]}.{cuda[1]}) has no kernels for {here}",
            f"install torch for CUDA {first} or newer",
        )
    elif rule and rule.last_major and cuda[0] > rule.last_major:
        yield problem(
            "torch-gpu",
            f"CUDA {cuda[0]} no longer supports {here}",
            "pip install torch --index-url https://download.pytorch.org/whl/cu126",
        )
    elif capability < least:
        yield problem(
            "torch-gpu",
            f"the official build of torch {torch} for CUDA {cuda[0]}.{cuda[1]} has no kernels for {here}",
            "pip install torch --index-url https://download.pytorch.org/whl/cu126",
        )


def _check_wheels(python: PythonFacts, cuda: tuple[int, int]) -> Iterator[CheckResult]:
    """Packages of NCCL, cuDNN and others that PyTorch loads."""
    for pin in python.pins:
        found = f"{pin.installed} is installed" if pin.installed else "it is not installed"
        yield warning(
            "torch-requires",
            f"{pin.package} needs {pin.requires} {pin.version}, and {found}",
            f"{python.executable} -m pip install {pin.requires}=={pin.version}",
        )
    for family in ("nccl", "cudnn"):
        names = [name for name in python.packages if name.startswith(f"nvidia_{family}_cu")]
        wrong = [name for name in names if name.removeprefix(f"nvidia_{family}_cu") != str(cuda[0])]
        if wrong:
            shown = wrong[0].replace("_", "-")
            yield warning(
                f"{family}-cuda",
                f"{shown} is installed beside a torch of CUDA {cuda[0]}",
                f"{python.executable} -m pip uninstall {shown}",
            )
        elif names:
            yield ok(family, f"{names[0].replace('_', '-')} {python.packages[names[0]]}")


def check_torch_copies(facts: Facts) -> Iterator[CheckResult]:
    """A second torch that Python finds first, such as one below ~/.local."""
    folders = facts.python.torch_folders
    if len(folders) > 1:
        yield warning(
            "torch-shadowed",
            f"Python imports torch from {folders[0]} and not from {folders[1]}",
            "PYTHONNOUSERSITE=1, and remove the folder from PYTHONPATH",
        )


def check_libraries(facts: Facts) -> Iterator[CheckResult]:
    """Libraries in LD_LIBRARY_PATH that the loader finds before those of torch."""
    cuda = version_of(facts.python.torch_cuda or "")[0]
    for folder in facts.python.library_folders:
        found = (re.match(r"libcudart\.so\.(\d+)", name) for name in folder.libraries)
        majors = {int(match[1]) for match in found if match}
        if "/stubs" in folder.path and "libcuda.so" in folder.libraries:
            yield problem(
                "library-stub",
                f"LD_LIBRARY_PATH has the stub of the driver, with which no GPU is found: {folder.path}",
                "remove the folder from LD_LIBRARY_PATH",
            )
        elif cuda and majors and cuda not in majors:
            yield warning(
                "library-cuda",
                f"LD_LIBRARY_PATH has CUDA {max(majors)}, and torch has CUDA {cuda}: {folder.path}",
                UNSET,
            )
        elif cuda and any(name.startswith(("libnccl", "libcudnn")) for name in folder.libraries):
            names = ", ".join(sorted({name.split(".")[0] for name in folder.libraries}))
            yield warning(
                "library-mix",
                f"LD_LIBRARY_PATH has {names}, which hide those of torch: {folder.path}",
                UNSET,
            )


def check_toolkits(facts: Facts) -> Iterator[CheckResult]:
    cuda = facts.cuda
    if cuda.is_home_missing:
        yield warning("cuda-home", f"CUDA_HOME is {cuda.home}, which does not exist", "unset CUDA_HOME")
    if cuda.toolkits:
        names = ", ".join(f"{one.version} ({one.path})" for one in cuda.toolkits)
        yield ok("cuda", f"CUDA toolkits: {names}")
    yield from _check_nvcc(cuda, facts.python)
    libraries = [f"NCCL {cuda.nccl}"] * bool(cuda.nccl) + [f"cuDNN {cuda.cudnn}"] * bool(cuda.cudnn)
    if libraries:
        yield ok("cuda-libraries", f"libraries of the system: {', '.join(libraries)}")


def _check_nvcc(cuda: CudaFacts, python: PythonFacts) -> Iterator[CheckResult]:
    """Extensions such as flash-attn are refused by PyTorch if nvcc has another major version."""
    if not cuda.nvcc_version or not python.torch_cuda:
        return
    if version_of(cuda.nvcc_version)[0] != version_of(python.torch_cuda)[0]:
        wanted = python.torch_cuda
        yield warning(
            "nvcc",
            f"{cuda.nvcc} has CUDA {cuda.nvcc_version}, torch has {wanted}: extensions do not build",
            f"export CUDA_HOME=/usr/local/cuda-{wanted} PATH=/usr/local/cuda-{wanted}/bin:$PATH",
        )
