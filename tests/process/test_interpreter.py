"""Which Python the commands start, by how the package is installed: native program and shell script."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import gflow
from tests.harness import BIN

LAUNCHER = Path(gflow.__file__).parents[2] / "scripts/launcher.sh"
WORDS = ["a b", ""]


@pytest.fixture(params=["native", "script"])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with bin/gctl, a command that the daemon does not serve."""
    source = BIN / "gctl" if request.param == "native" else LAUNCHER
    if request.param == "native" and source.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("the native client was not built")
    (tmp_path / "bin").mkdir()
    shutil.copy(source, tmp_path / "bin/gctl")
    return tmp_path


def add_package(prefix: Path, folder: str) -> Path:
    site = prefix / "lib" / folder
    (site / "gflow").mkdir(parents=True)
    (site / "gflow/entry.py").touch()
    return site


def add_python(path: Path) -> None:
    """A program that prints its path and its arguments in lines, and CODE for one that is a program."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        '#!/bin/sh\nfor one in "$0" "$@"; do case $one in import*) one=CODE; esac; echo "$one"; done\n'
    )
    path.chmod(0o755)


def run(prefix: Path, folder: str = "bin") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [prefix / folder / "gctl", *WORDS],
        env={"PATH": f"{prefix}/path:/usr/bin:/bin"}, capture_output=True, text=True,
    )  # fmt: skip


def started(prefix: Path, folder: str = "bin") -> tuple[str, str, list[str]]:
    """The interpreter, its options in one text, and the words behind them."""
    done = run(prefix, folder)
    assert done.stderr == ""
    program, *rest = done.stdout.splitlines()
    at = rest.index("CODE" if "CODE" in rest else "gflow")
    assert rest[-2:] == WORDS
    return program, " ".join(rest[:at]).replace("-I -S", "-IS"), rest[at + 1 : -2]


@pytest.mark.parametrize("packages", ["site-packages", "dist-packages"])
def test_interpreter_beside_the_command_runs_without_site(prefix: Path, packages: str) -> None:
    site = add_package(prefix, f"python3.11/{packages}")
    for name in ("bin/python3", "path/python3", "path/python3.11"):
        add_python(prefix / name)
    program, options, rest = started(prefix)
    assert (Path(program).resolve(), options) == (prefix / "bin/python3", "-IS -X utf8 -c")
    assert (Path(rest[0]).resolve(), rest[1]) == (site, "gctl")


@pytest.mark.parametrize("packages", ["site-packages", "dist-packages"])
def test_version_of_the_package_is_taken_from_path_when_none_is_beside(prefix: Path, packages: str) -> None:
    """pip install --user, pip install --prefix, and root's pip on Debian."""
    (prefix / "lib/python3.10/site-packages").mkdir(parents=True)
    site = add_package(prefix, f"python3.11/{packages}")
    for name in ("path/python3", "path/python3.10", "path/python3.11"):
        add_python(prefix / name)
    program, options, rest = started(prefix)
    assert (program, options) == (str(prefix / "path/python3.11"), "-I -X utf8 -c")
    assert (Path(rest[0]).resolve(), rest[1]) == (site, "gctl")


def test_interpreter_is_beside_the_command_when_a_link_names_it(prefix: Path) -> None:
    """pipx and uv tool."""
    add_package(prefix, "python3.11/site-packages")
    add_python(prefix / "bin/python3")
    (prefix / "path").mkdir()
    (prefix / "path/gctl").symlink_to("../bin/gctl")
    assert Path(started(prefix, "path")[0]).resolve() == prefix / "bin/python3"


@pytest.mark.parametrize("place", ["bin", "path"])
def test_editable_package_is_run_by_python3(prefix: Path, place: str) -> None:
    for name in ("path/python3", f"{place}/python3"):
        add_python(prefix / name)
    program, _, rest = started(prefix)
    assert Path(program).resolve() == prefix / place / "python3"
    assert "gctl" in rest


def test_missing_interpreter_is_named(prefix: Path) -> None:
    add_package(prefix, "python3.99/site-packages")
    done = run(prefix)
    assert done.returncode != 0 and "python3.99: " in done.stderr
