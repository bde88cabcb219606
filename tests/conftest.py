from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A box without a running daemon; everything in it is gone afterwards."""
    made = Box(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture
def daemon(box: Box) -> Box:
    """A box whose daemon has four simulated GPUs and four CPU slots."""
    return box.up("--simulate-gpus", "4x80G", "--cpus", "4")
