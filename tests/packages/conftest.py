from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages.machine import PYTHONS, ROOT, Machine

WHEEL = "*-manylinux_*.whl"


def build(folder: Path) -> None:
    line = [sys.executable, str(ROOT / "scripts/build-packages"), str(folder)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the packages of this checkout."""
    folder = tmp_path_factory.mktemp("packages")
    build(folder)
    return folder


@pytest.fixture(scope="session")
def wheelhouse(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What gflow depends on, for every version of Python: no test asks an index again."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    for version in PYTHONS:
        line = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
        line += [
            "--python-version",
            version,
            "--dest",
            str(folder),
            *map(str, packages.glob("*-none-any.whl")),
        ]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the dependencies cannot be downloaded: {done.stderr.splitlines()[-1]}")
    for path in folder.glob("gflow_scheduler-*"):
        path.unlink()
    return folder


@pytest.fixture
def machine(tmp_path: Path, wheelhouse: Path) -> Machine:
    return Machine(tmp_path, wheelhouse)
