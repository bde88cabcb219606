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
    if driver.has_no_gpu and facts.daemon.is_simulated:
        return  # `check_daemon` says so
    if driver.is_absent:
        yield _absent(driver)
        return
    if driver.trouble:
        yield problem("driver", f"the driver does not answer: {driver.trouble}", _driver_fix(driver))
        return
    cuda = f", CUDA up to {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else ""
    count = len(driver.gpus)
    yield ok("driver", f"driver {driver.version}{cuda}, {count} GPU{'' if count == 1 else 's'}")
    if driver.closed_devices:
        names = ", ".join(driver.closed_devices)
        yield problem(
            "gpu-access",
            f"you may not open {names}",
            ADMIN + "add you to the group of these devices (ls -l /dev/nvidia*)",
        )
    yield from _check_xids(driver)
    yield from _check_mps(driver)


def _driver_fix(driver: DriverFacts) -> str:
    if "mismatch" in driver.trouble.lower():
        return "reboot, so that the loaded driver is the installed one"
    if driver.is_slow:
        return "time nvidia-smi; nvidia-smi -pm 1 (as root) keeps the driver loaded"
    return ADMIN + "nvidia-smi must work first"


def _absent(driver: DriverFacts) -> CheckResult:
    """Why there is no driver: no GPU, the open driver nouveau, no package, or a container without GPUs."""
    if driver.has_nouveau:
        return problem(
            "driver",
            "the open driver nouveau has the NVIDIA GPUs: CUDA does not run on it",
            ADMIN + "apt install nvidia-driver, which disables nouveau, and reboot",
        )
    if driver.on_bus:
        return problem(
            "driver",
            f"{driver.on_bus} NVIDIA GPU(s) on the PCI bus, and no driver library (libnvidia-ml.so.1)",
            "in a container: docker run --gpus all; else " + ADMIN + "apt install nvidia-driver",
        )
    return warning(
        "driver",
        "there is no NVIDIA GPU and no driver: jobs with --gpus cannot run here",
        "gflowd up --simulate-gpus 4x80G tries gflow without a GPU",
    )


def _check_xids(driver: DriverFacts) -> Iterator[CheckResult]:
    numbers = sorted(set(driver.xids))
    faults = [number for number in numbers if number in driver.xid_meanings]
    others = [number for number in numbers if number not in driver.xid_meanings]
    when = "journalctl -k --grep 'NVRM: Xid' shows when"
    if faults:
        names = ", ".join(f"{number} ({driver.xid_meanings[number]})" for number in faults)
        yield problem("xid", f"the kernel has logged faults of a GPU: Xid {names}", when)
    if others:
        text = f"the kernel has logged Xid {', '.join(map(str, others))}: mostly errors of programs"
        yield warning("xid", text, when)


def _check_mps(driver: DriverFacts) -> Iterator[CheckResult]:
    if driver.is_mps_running:
        yield warning(
            "mps-running",
            "an MPS server outside gflow runs: a crash of one of its programs ends all of them",
            "echo quit | nvidia-cuda-mps-control",
        )
    elif driver.mps_program:
        yield ok("mps", "MPS is installed: gpu.mps = true limits the memory of jobs that share a GPU")


def check_gpus(facts: Facts) -> Iterator[CheckResult]:
    for gpu in facts.driver.gpus:
        found = list(_check_gpu(gpu))
        yield from found
        if not found:
            yield ok("gpu", f"GPU {gpu.number}: {gpu.model}, {gpu.memory_mib // 1024} GiB, healthy")


def _check_gpu(gpu: GpuFacts) -> Iterator[CheckResult]:
    here = f"GPU {gpu.number}"
    drain = f"gctl drain --gpu {gpu.number}; " + ADMIN + f"nvidia-smi -q -i {gpu.number}"
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
    yield from _check_mig(gpu, here)
    if gpu.has_ecc is False:
        yield warning(
            "gpu-ecc",
            f"{here}: ECC is off; memory errors go unnoticed",
            f"nvidia-smi -i {gpu.number} -e 1 (as root, then reboot)",
        )
    yield from _check_compute_mode(gpu, here)
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


def _check_compute_mode(gpu: GpuFacts, here: str) -> Iterator[CheckResult]:
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


def _check_mig(gpu: GpuFacts, here: str) -> Iterator[CheckResult]:
    if gpu.is_mig_next is not None and gpu.is_mig != gpu.is_mig_next:
        state = "on" if gpu.is_mig_next else "off"
        yield warning(
            "gpu-mig-pending",
            f"{here}: MIG will be {state} after the next reset",
            f"nvidia-smi -r -i {gpu.number} (as root, no jobs on it)",
        )
    if gpu.is_mig and not gpu.slices:
        yield problem(
            "gpu-mig-empty",
            f"{here}: MIG is on, and the GPU has no MIG devices; no job can use it",
            f"nvidia-smi mig -i {gpu.number} -lgip; nvidia-smi mig -i {gpu.number} -cgi ID -C (as root)",
        )
