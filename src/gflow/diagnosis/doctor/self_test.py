"""The self-test of GPUs: what was measured, what to expect, and the judgement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gflow.diagnosis.doctor.report import CheckResult, ok, problem, warning

# Shares of the expected figure below which a measurement is a warning, and a problem.
LOW, BROKEN = 0.6, 0.2
TITLES = {
    "bf16": ("bf16 matrix product", "TFLOPS"),
    "fp16": ("fp16 matrix product", "TFLOPS"),
    "fp32": ("fp32 matrix product", "TFLOPS"),
    "memory": ("memory bandwidth", "GB/s"),
    "upload": ("copy from the host", "GB/s"),
    "download": ("copy to the host", "GB/s"),
    "peer": ("copy between GPUs", "GB/s"),
    "all_reduce": ("NCCL all-reduce, bus bandwidth", "GB/s"),
}
# Gigabytes per second of one PCIe lane, by generation, after the line code.
PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
FIXES = {
    **dict.fromkeys(("bf16", "fp16", "fp32"), "nvidia-smi -q -d PERFORMANCE,POWER,CLOCK -i {gpu}"),
    "memory": "nvidia-smi -q -d ECC,ROW_REMAPPER,CLOCK -i {gpu}",
    **dict.fromkeys(("upload", "download"), "nvidia-smi -q -i {gpu} | grep -A12 'GPU Link Info'"),
    "peer": "nvidia-smi topo -m; nvidia-smi nvlink -s",
    "all_reduce": "NCCL_DEBUG=INFO shows the transport; nvidia-smi topo -m",
}


class Measurement(NamedTuple):
    """One figure of the self-test. `expected`: that of the catalogue or of the PCIe link; None: unknown."""

    name: str
    gpus: tuple[int, ...]
    value: float | None = None
    error: str = ""
    expected: float | None = None
    # Share of the expected figure that such a GPU reaches in this test, if not the usual one.
    low: float = LOW

    @property
    def share(self) -> float | None:
        return self.value / self.expected if self.value is not None and self.expected else None


class SkippedGpu(NamedTuple):
    gpu: int
    why: str


class SelfTest(NamedTuple):
    """A run of the self-test."""

    measurements: tuple[Measurement, ...] = ()
    skipped: tuple[SkippedGpu, ...] = ()
    # What torch says of itself: 2.11.0, CUDA 13.0, NCCL 2.28.9, cuDNN 91900.
    torch: str = ""
    # The step that did not end, or why the program ended.
    trouble: str = ""
    seconds: float = 0


def check_self_test(test: SelfTest) -> Iterator[CheckResult]:
    for gpu, why in test.skipped:
        yield ok("gpu-test-skipped", f"GPU {gpu} is not tested: {why}")
    if test.trouble:
        yield problem(
            "gpu-test-failed", f"the self-test has not ended: {test.trouble}", "nvidia-smi; dmesg | grep NVRM"
        )
    for one in test.measurements:
        yield _judge(one)


def _judge(one: Measurement) -> CheckResult:
    title, unit = TITLES[one.name]
    where = f"GPU {one.gpus[0]}" if len(one.gpus) == 1 else f"GPUs {', '.join(map(str, one.gpus))}"
    fix = FIXES[one.name].format(gpu=one.gpus[0])
    name = f"gpu-test-{one.name.replace('_', '-')}"
    if one.error:
        return problem(name, f"{where}: {title}: {one.error}", fix)
    text = f"{where}: {title}: {one.value:.0f} {unit}"
    if one.share is None:
        return ok(name, text)
    text += f", {one.share:.0%} of {one.expected:.0f}"
    if one.share < BROKEN:
        return problem(name, text, fix)
    if one.share < one.low:
        return warning(name, text, fix)
    return ok(name, text)
