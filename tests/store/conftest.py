from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.disk import Disk
from tests.store.script import live

SOURCE = Path(__file__).with_name("faulty.c")


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes a disk fail, built here and now."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here, and the failing disk is written in C: install gcc")
    built = tmp_path_factory.mktemp("faulty") / "faulty.so"
    words = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", built, SOURCE]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture
def memory_disk() -> Iterator[Path]:
    """A folder in memory where there is one: a simulated disk needs no real one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="gflow-", dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder).resolve()


@pytest.fixture
def disk(faulty: Path, memory_disk: Path) -> Iterator[Disk]:
    """Processes that work on a failing disk."""
    made = Disk(faulty, memory_disk)
    yield made
    made.close()


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the database holds after each commit of the life, when nothing fails."""
    return live(tmp_path_factory.mktemp("expected") / "gflow.db")
