"""The built wheels, installed as a user does it: into an empty home, without compiler and network."""

from __future__ import annotations

import hashlib
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packages.conftest import WHEEL, build
from tests.packages.machine import PYTHONS, TOOLS, Machine, find_python

pytestmark = pytest.mark.slow
# What a user's daemon and commands leave behind, and a lock of pipx.
DATA = (".config/gflow", ".local/share/gflow", ".local/share/pipx/venvs/.gflow-scheduler.lock")


def install_by_pip(machine: Machine, wheel: Path, python: str) -> Callable[[], object]:
    folder = machine.home / "venv"
    machine.run(python, "-m", "venv", folder)
    machine.run(folder / "bin/pip", "install", wheel)
    machine.add_to_path(folder / "bin")
    return lambda: machine.run(folder / "bin/pip", "uninstall", "--yes", "gflow-scheduler")


def install_by_pip_user(machine: Machine, wheel: Path, python: str) -> Callable[[], object]:
    """The commands are in ~/.local/bin, and no Python is there."""
    machine.add_to_path(Path(python).parent)
    machine.run(python, "-m", "pip", "install", "--user", "--break-system-packages", wheel)
    machine.add_to_path(machine.home / ".local/bin")
    assert not (machine.home / ".local/bin/python3").exists()
    words = ("uninstall", "--yes", "--break-system-packages", "gflow-scheduler")
    return lambda: machine.run(python, "-m", "pip", *words)


def install_by_pipx(machine: Machine, wheel: Path, python: str) -> Callable[[], object]:
    machine.run(TOOLS / "pipx", "install", "--python", python, wheel)
    machine.add_to_path(machine.home / ".local/bin")
    return lambda: machine.run(TOOLS / "pipx", "uninstall", "gflow-scheduler")


def install_by_uv(machine: Machine, wheel: Path, python: str) -> Callable[[], object]:
    machine.run(TOOLS / "uv", "tool", "install", "--python", python, wheel)
    machine.add_to_path(machine.home / ".local/bin")
    # uv links commands, not manual pages: docs/installation.md names the folder.
    machine.env["MANPATH"] = str(machine.home / ".local/share/uv/tools/gflow-scheduler/share/man")
    return lambda: machine.run(TOOLS / "uv", "tool", "uninstall", "gflow-scheduler")


WAYS = (install_by_pip, install_by_pip_user, install_by_pipx, install_by_uv)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("install", WAYS, ids=lambda way: way.__name__.removeprefix("install_by_"))
def test_first_job_after_installing_wheel(
    machine: Machine, packages: Path, install: Callable[..., Callable[[], object]], python: str
) -> None:
    (wheel,) = packages.glob(WHEEL)
    assert not machine.has("cc") and not machine.has("gcc")
    uninstall = install(machine, wheel, find_python(python))
    machine.run_first_job()
    assert wheel.name.split("-")[1] in machine.run("gflow", "--version").split()
    if machine.has("man") and machine.has("groff"):
        assert "--gpus" in machine.run("man", "gbatch")
    uninstall()
    assert not machine.has("gbatch") and not machine.has("gflowd")
    assert leftovers(machine.home) == []


def leftovers(home: Path) -> list[str]:
    """Files and folders with gflow in their name that are neither data nor settings."""
    found = [path.relative_to(home).as_posix() for path in home.rglob("*")]
    pattern = re.compile(r"gflow|gbatch|gqueue|gjob|gctl|ginfo|grun|gstats|gcancel")
    return [name for name in found if pattern.search(name) and not name.startswith(DATA)]


@pytest.mark.parametrize("install", WAYS[:2], ids=["pip", "pip_user"])
def test_pure_wheel_runs_jobs_by_the_python_shim(
    machine: Machine, packages: Path, install: Callable[..., Callable[[], object]]
) -> None:
    (wheel,) = packages.glob("*-none-any.whl")
    install(machine, wheel, find_python("3.11"))
    assert not list(machine.home.rglob("gflow-shim"))
    machine.run_first_job()


def test_wheel_has_an_executable_shim(packages: Path) -> None:
    (wheel,) = packages.glob(WHEEL)
    shim = zipfile.ZipFile(wheel).getinfo("gflow/targets/local/gflow-shim")
    assert shim.external_attr >> 16 & 0o111 == 0o111


def test_same_sources_give_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    build(tmp_path / "again")
    again = digests(tmp_path / "again")
    assert again == digests(packages)
    assert len(again) == 3


def digests(folder: Path) -> dict[str, str]:
    """A digest of each file, because pytest compares megabytes for hours."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_packages_have_the_licences_of_what_they_contain(packages: Path) -> None:
    for wheel in packages.glob("*.whl"):
        names = zipfile.ZipFile(wheel).namelist()
        licences = {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
        assert licences == {"LICENSE", "glibc.txt", "preact.txt", "uPlot.txt"}


def test_description_links_to_no_file_of_the_repository(packages: Path) -> None:
    for wheel in packages.glob("*.whl"):
        archive = zipfile.ZipFile(wheel)
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
        assert "\n# gflow\n" in text and "- **Use:** all pages, " in text
        links = re.findall(r"\]\(([^)]*)\)", text)
        assert len(links) > 4 and [link for link in links if not link.startswith("http")] == []


def test_source_distribution_builds_the_package_and_its_tests(packages: Path) -> None:
    (path,) = packages.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "pyproject.toml",
        "hatch_build.py",
        "LICENSE",
        "README.md",
        "scripts/bin/gbatch",
        "share/man/man1/gbatch.1",
    }
    needed |= {
        "src/gflow/targets/local/native/shim.h",
        "tests/harness.py",
        "docs/installation.md",
        "web/package.json",
    }
    assert needed <= names
    assert not [name for name in names if name.endswith((".pyc", "gflow-shim"))]
