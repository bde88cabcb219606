"""Save and restore the state of all random number generators that a training step may use."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def seed_all(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))


def states(device: torch.device) -> dict[str, Any]:
    """Return the states as numbers and tensors only, so that they can be loaded without running code."""
    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if device.type != "cpu":
        found[device.type] = torch.get_device_module(device).get_rng_state(*_place(device))
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        found["numpy"] = (str(name), keys.tolist(), *map(float, rest))
    return found


def restore(found: dict[str, Any], device: torch.device) -> None:
    version, numbers, gauss = found["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(found["torch"].cpu())
    if device.type != "cpu" and device.type in found:
        torch.get_device_module(device).set_rng_state(found[device.type].cpu(), *_place(device))
    if "numpy" in found:
        import numpy

        name, keys, position, has_gauss, cached = found["numpy"]
        numpy.random.set_state((name, numpy.array(keys, "uint32"), int(position), int(has_gauss), cached))


def _place(device: torch.device) -> tuple[torch.device, ...]:
    """Return the argument that says which device is meant; MPS has one alone."""
    return () if device.type == "mps" else (device,)
