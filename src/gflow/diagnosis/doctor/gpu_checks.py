"""Checks of the driver and of each GPU."""

from __future__ import annotations

from collections.abc import Iterator

from gflow.diagnosis.doctor.facts import DriverFacts, Facts, GpuFacts
from gflow.diagnosis.doctor.report import CheckResult, ok, problem, warning

# Throttle reasons of the driver that cost speed: thermal slowdown (software, hardware), power brake.
HEAT = 0x20 | 0x40
BRAKE = 0x80
EXCLUSIVE, PROHIBITED = (1, 3), 2
ADMIN = "ask the administrator: "


def check_driver(facts: Facts) -> Iterator[CheckResult]:
    driver = facts.driver
    if driver.is_absent:
        yield warning(
            "driver",
            "there is no NVIDIA driver: jobs with --gpus cannot run here",
            ADMIN + "apt install nvidia-driver",
        )
        return
    if driver.trouble:
        fix = (
            "reboot, so that the loaded driver is the installed one"
            if "mismatch" in driver.trouble.lower()
            else (ADMIN + "nvidia-smi must work first")
        )
        yield problem("driver", f"the driver does not answer: {driver.trouble}", fix)
        return
    cuda = f", CUDA up to {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else ""
    yield ok("driver", f"driver {driver.version}{cuda}, {len(driver.gpus)} GPUs")
    if driver.closed_devices:
        names = ", ".join(driver.closed_devices)
        yield problem(
            "gpu-access",
            f"you may not open {names}",
            ADMIN + "add you to the group of these devices (ls -l /dev/nvidia*)",
        )
    if driver.xids:
        numbers = ", ".join(map(str, sorted(set(driver.xids))))
        yield warning(
            "xid",
            f"the kernel has logged Xid {numbers} since it started",
            "journalctl -k --grep 'NVRM: Xid' shows when",
        )


def check_gpus(facts: Facts) -> Iterator[CheckResult]:
    for gpu in facts.driver.gpus:
        found = list(_check_gpu(gpu))
        yield from found
        if not found:
            yield ok("gpu", f"GPU {gpu.number}: {gpu.model}, {gpu.memory_mib // 1024} GiB, healthy")


def _check_gpu(gpu: GpuFacts) -> Iterator[CheckResult]:
    here = f"GPU {gpu.number}"
    drain = f"gctl drain-gpu {gpu.number}; " + ADMIN + f"nvidia-smi -q -i {gpu.number}"
    if gpu.problem:
        yield problem("gpu-lost", f"{here} cannot be used: {gpu.problem}", drain)
        return
    if gpu.is_remapping_failed:
        yield problem("gpu-memory", f"{here}: rows of its memory could not be remapped", drain)
    if gpu.ecc_errors:
        yield problem(
            "gpu-memory", f"{here}: {gpu.ecc_errors} memory errors that ECC could not correct", drain
        )
    if gpu.is_remapping_pending:
        yield warning(
            "gpu-memory",
            f"{here}: memory rows are remapped at the next reset",
            f"nvidia-smi -r -i {gpu.number} (no jobs on it)",
        )
    if gpu.throttled & HEAT:
        yield warning(
            "gpu-heat", f"{here} is slowed by heat ({gpu.temperature} °C)", "check fans and airflow"
        )
    if gpu.throttled & BRAKE:
        yield warning(
            "gpu-power",
            f"{here} is slowed by its power supply (power brake)",
            "check power cables and supplies",
        )
    yield from _check_gpu_settings(gpu, here)


def _check_gpu_settings(gpu: GpuFacts, here: str) -> Iterator[CheckResult]:
    if gpu.pcie_width and gpu.pcie_most and gpu.pcie_width < gpu.pcie_most and gpu.pcie_width < 8:
        yield warning(
            "gpu-pcie",
            f"{here} uses {gpu.pcie_width} of {gpu.pcie_most} PCIe lanes",
            "reseat the card; check the slot",
        )
    if gpu.has_persistence is False:
        yield warning(
            "gpu-persistence",
            f"{here}: persistence mode is off; each job waits for the driver to load",
            "nvidia-smi -pm 1 (as root)",
        )
    if gpu.compute_mode == PROHIBITED:
        yield problem(
            "gpu-mode",
            f"{here}: compute mode is Prohibited; no job can use it",
            f"nvidia-smi -i {gpu.number} -c DEFAULT (as root)",
        )
    elif gpu.compute_mode in EXCLUSIVE:
        yield warning(
            "gpu-mode",
            f"{here}: compute mode is exclusive; jobs cannot share it",
            f"nvidia-smi -i {gpu.number} -c DEFAULT (as root)",
        )
    if gpu.power_limit_w and gpu.power_usual_w and gpu.power_limit_w < 0.75 * gpu.power_usual_w:
        yield warning(
            "gpu-power",
            f"{here}: power is limited to {gpu.power_limit_w:.0f} W of {gpu.power_usual_w:.0f} W",
            f"nvidia-smi -i {gpu.number} -pl {gpu.power_usual_w:.0f} (as root)",
        )
    if gpu.foreign:
        pids = ", ".join(map(str, gpu.foreign[:5]))
        yield warning(
            "gpu-foreign",
            f"{here}: processes outside gflow use it: {pids}",
            f"ps -o user,etime,cmd -p {pids.replace(' ', '')}",
        )


# The oldest driver for each major version of CUDA (minor version compatibility), from NVIDIA's CUDA
# Toolkit release notes, table 2 and "CUDA Compatibility"; read in November 2026.
OLDEST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
# The first CUDA version whose libraries support a compute capability (same source, and the toolkit's
# release notes): Volta, Turing, Ampere, Ada, Hopper, Blackwell.
FIRST_CUDA = {
    (7, 0): (9, 0), (7, 5): (10, 0), (8, 0): (11, 0), (8, 6): (11, 1), (8, 9): (11, 8), (9, 0): (11, 8),
    (10, 0): (12, 8), (10, 3): (12, 9), (12, 0): (12, 8),
}  # fmt: skip
# The last CUDA major version that supports a compute capability: 13 dropped Maxwell, Pascal and Volta.
LAST_MAJOR = {(5, 0): 12, (5, 2): 12, (6, 0): 12, (6, 1): 12, (7, 0): 12}


def check_versions(facts: Facts) -> Iterator[CheckResult]:
    """Whether PyTorch's CUDA fits the driver and the GPUs."""
    python, driver = facts.python, facts.driver
    torch = python.packages.get("torch")
    if torch is None:
        where = python.executable or "python3"
        yield ok("torch", f"no PyTorch in the environment of {where}: not checked")
        return
    if not python.torch_cuda:
        if driver.gpus:
            yield problem(
                "torch-cuda",
                f"torch {torch} is a CPU build, and this machine has GPUs",
                "install a CUDA build of torch in that environment",
            )
        else:
            yield ok("torch", f"torch {torch} (CPU build)")
        return
    cuda = _version(python.torch_cuda)
    yield from _check_driver_age(cuda, torch, driver)
    yield from _check_capabilities(cuda, torch, driver)


def _check_driver_age(cuda: tuple[int, int], torch: str, driver: DriverFacts) -> Iterator[CheckResult]:
    if not driver.version:
        return
    oldest = OLDEST_DRIVER.get(cuda[0])
    if oldest and _version(driver.version) < oldest:
        yield problem(
            "torch-driver",
            f"torch {torch} uses CUDA {cuda[0]}.{cuda[1]}, which needs driver {oldest[0]}.{oldest[1]} or newer; this one is {driver.version}",
            f"update the driver, or install torch for CUDA {driver.cuda[0] if driver.cuda else cuda[0] - 1}",
        )
    else:
        yield ok("torch", f"torch {torch} with CUDA {cuda[0]}.{cuda[1]} fits driver {driver.version}")


def _check_capabilities(cuda: tuple[int, int], torch: str, driver: DriverFacts) -> Iterator[CheckResult]:
    for gpu in driver.gpus:
        if not gpu.compute_capability:
            continue
        capability = _version(gpu.compute_capability)
        first, last = FIRST_CUDA.get(capability), LAST_MAJOR.get(capability)
        if first and cuda < first:
            yield problem(
                "torch-gpu",
                f"torch {torch} (CUDA {cuda[0]}.{cuda[1]}) has no kernels for GPU {gpu.number} ({gpu.model}, sm_{capability[0]}{capability[1]})",
                f"install torch for CUDA {first[0]}.{first[1]} or newer",
            )
        if last and cuda[0] > last:
            yield problem(
                "torch-gpu",
                f"CUDA {cuda[0]} no longer supports GPU {gpu.number} ({gpu.model}, sm_{capability[0]}{capability[1]})",
                f"install torch for CUDA {last}",
            )


def _version(text: str) -> tuple[int, int]:
    parts = [int(part) for part in text.split(".")[:2] if part.isdecimal()]
    return (parts[0] if parts else 0, parts[1] if len(parts) > 1 else 0)
