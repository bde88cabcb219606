"""The versions of PyTorch whose predictions were compared with measurements."""

from __future__ import annotations

import re

# All measurements are of this version.
MEASURED = "2.11"
# From the oldest to the newest version that predicts every measured case as the measured version does
# (tests/fit/test_torch_matrix.py). `pyproject.toml` allows no older one.
COMPARED = ((2, 11), (2, 15))


def doubts(version: str) -> set[str]:
    """Return the doubt about a version that was not compared; empty for one that was."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and COMPARED[0] <= (int(found[1]), int(found[2])) <= COMPARED[1]:
        return set()
    first, last = (".".join(map(str, one)) for one in COMPARED)
    return {f"PyTorch {version} was not compared with measurements: {first} to {last} were"}
