"""Rules about which driver, CUDA version, GPU and PyTorch build fit together, with source and date.

Each rule is a row. A version is a pair (major, minor). Add a row when a new CUDA version or GPU appears.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Version = tuple[int, int]
READ_ON = "2026-11-18"
SOURCES = {
    "driver": "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
    "toolkit": "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
    "wheels": "https://github.com/pytorch/pytorch/blob/main/RELEASE.md#pytorch-cuda-support-matrix",
    "extensions": "torch/utils/cpp_extension.py, _check_cuda_version",
}


class DriverRule(NamedTuple):
    """The oldest driver for a major version of CUDA (source: driver)."""

    cuda_major: int
    oldest_driver: Version


class CapabilityRule(NamedTuple):
    """The CUDA versions whose libraries support a compute capability (source: toolkit)."""

    capability: Version
    name: str
    first_cuda: Version
    last_major: int | None = None


class WheelRule(NamedTuple):
    """Official PyTorch builds without kernels for older GPUs (source: wheels).

    Builds of at least `torch` with at least `cuda` need at least `capability`.
    """

    torch: Version
    cuda: Version
    capability: Version


DRIVERS = (DriverRule(11, (450, 80)), DriverRule(12, (525, 60)), DriverRule(13, (580, 0)))
# CUDA 13 dropped Maxwell, Pascal and Volta.
CAPABILITIES = (
    CapabilityRule((5, 0), "Maxwell", (6, 5), 12),
    CapabilityRule((5, 2), "Maxwell", (6, 5), 12),
    CapabilityRule((6, 0), "Pascal", (8, 0), 12),
    CapabilityRule((6, 1), "Pascal", (8, 0), 12),
    CapabilityRule((7, 0), "Volta", (9, 0), 12),
    CapabilityRule((7, 5), "Turing", (10, 0)),
    CapabilityRule((8, 0), "Ampere", (11, 0)),
    CapabilityRule((8, 6), "Ampere", (11, 1)),
    CapabilityRule((8, 9), "Ada", (11, 8)),
    CapabilityRule((9, 0), "Hopper", (11, 8)),
    CapabilityRule((10, 0), "Blackwell", (12, 8)),
    CapabilityRule((10, 3), "Blackwell", (12, 9)),
    CapabilityRule((12, 0), "Blackwell", (12, 8)),
)
WHEELS = (WheelRule((2, 8), (12, 8), (7, 0)), WheelRule((2, 11), (12, 8), (7, 5)))


def oldest_driver(cuda: Version) -> Version | None:
    """The oldest driver that runs programs of this CUDA version; None: no rule."""
    return next((rule.oldest_driver for rule in DRIVERS if rule.cuda_major == cuda[0]), None)


def capability_rule(capability: Version) -> CapabilityRule | None:
    return next((rule for rule in CAPABILITIES if rule.capability == capability), None)


def least_capability(torch: Version, cuda: Version) -> Version:
    """The oldest GPUs for which the official build of PyTorch has kernels; (0, 0): no rule."""
    return max(
        (rule.capability for rule in WHEELS if torch >= rule.torch and cuda >= rule.cuda), default=(0, 0)
    )


def version_of(text: str) -> Version:
    """The first two numbers of a version: (2, 6) for 2.6.0+cu124, (0, 0) without any."""
    numbers = [int(found) for found in re.findall(r"\d+", text.partition("+")[0])[:2]]
    return (numbers[0] if numbers else 0, numbers[1] if len(numbers) > 1 else 0)
