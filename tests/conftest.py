from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.harness import Box
from tests.metadata import Server

# A run in the background is started with Ctrl-C ignored, and every program of ours would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked `both_shims` are run with the plain shim and with the Python one."""
    if metafunc.definition.get_closest_marker("both_shims") and "box" in metafunc.fixturenames:
        metafunc.parametrize("shim", ["plain", "python"], indirect=True)


TESTS = Path(__file__).parent
# Folders whose tests share something expensive: a browser and a daemon, a Slurm cluster.
TOGETHER = ("web", "slurm")
# Folders with long files begin first, so that the short files of the others fill the workers at the end.
FIRST = ("slurm", "web", "train", "fit", "process", "crash", "store", "property")


class FileScheduling(LoadScopeScheduling):
    """Gives a worker a whole file, or all of a folder of `TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = path.split("/")[1]
        return folder if folder in TOGETHER else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep the garbage collector from the tests and the modules, such as PyTorch, that they import."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the folders of `FIRST` before the others.

    In CI a test has a second attempt, and the report lists it as RERUN: one race among 10,000 tests
    is named, and does not hide the result of the slow tests that follow.
    """
    folders = {item: item.path.relative_to(TESTS).parts[0] for item in items}
    if os.environ.get("CI"):
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=1))
    ranks = {folder: rank for rank, folder in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(folders[item], len(FIRST)))


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
