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
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        found["numpy"] = (str(name), keys.tolist(), *map(float, rest))
    return found


def restore(found: dict[str, Any], device: torch.device) -> None:
    version, numbers, gauss = found["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(found["torch"].cpu())
    if device.type == "cuda" and "cuda" in found:
        torch.cuda.set_rng_state(found["cuda"].cpu(), device)
    if "numpy" in found:
        import numpy

        name, keys, position, has_gauss, cached = found["numpy"]
        numpy.random.set_state((name, numpy.array(keys, "uint32"), int(position), int(has_gauss), cached))
