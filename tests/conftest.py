from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Box
from tests.metadata import Server

# A run in the background is started with Ctrl-C ignored, and every program of ours would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked `both_shims` are run with the plain shim and with the Python one."""
    if metafunc.definition.get_closest_marker("both_shims") and "box" in metafunc.fixturenames:
        metafunc.parametrize("shim", ["plain", "python"], indirect=True)


@pytest.fixture
def shim(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "plain")


@pytest.fixture
def box(tmp_path: Path, shim: str) -> Iterator[Box]:
    """A box without a running daemon; everything in it is gone afterwards."""
    made = Box(tmp_path)
    made.env["GFLOW_SHIM"] = shim
    yield made
    made.clean_up()


@pytest.fixture
def daemon(box: Box) -> Box:
    """A box whose daemon has four simulated GPUs and four CPU slots."""
    return box.up("--simulate-gpus", "4x80G", "--cpus", "4")


@pytest.fixture
def metadata() -> Iterator[Server]:
    """A cloud's metadata service that takes the machine when it is told to."""
    made = Server()
    yield made
    made.close()
