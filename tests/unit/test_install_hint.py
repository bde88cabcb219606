"""How to add an extra, for each way in which gflow can be installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gflow.install_hint import DISTRIBUTION, Installation, extra_hint

ROOT = Path(__file__).parents[2]
METADATA = """Metadata-Version: 2.4
Name: gflow-scheduler
Version: 0.1.0
Requires-Dist: msgspec>=0.19
Requires-Dist: torch>=2.11; extra == 'fit'
Requires-Dist: transformers>=5.10; extra == "fit"
Requires-Dist: matplotlib>=3.9; extra == 'plot'
"""
RECEIPT = """[tool]
requirements = [{ name = "gflow-scheduler", %s }, { name = "numpy" }]
entrypoints = []
"""


def environment(folder: Path, **files: str) -> Installation:
    """An environment with gflow installed in it, and these files."""
    package = folder / "lib/python3.12/site-packages/gflow"
    package.mkdir(parents=True)
    metadata = package.with_name("gflow_scheduler-0.1.0.dist-info") / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(METADATA)
    for name, text in files.items():
        (folder / name).write_text(text)
    return Installation(str(package), str(folder / "bin/python3"), {})


def test_pipx_injects_the_packages_of_the_extra(tmp_path: Path) -> None:
    here = environment(tmp_path / "venvs/gflow-scheduler", **{"pipx_metadata.json": "{}"})
    assert extra_hint("fit", here) == "pipx inject gflow-scheduler 'torch>=2.11' 'transformers>=5.10'"
    assert extra_hint("plot", here) == "pipx inject gflow-scheduler 'matplotlib>=3.9'"
    several = "pipx inject gflow-scheduler 'matplotlib>=3.9' 'torch>=2.11' 'transformers>=5.10'"
    assert extra_hint("plot,fit", here) == several


@pytest.mark.parametrize(
    ("source", "end"),
    [
        ('directory = "/src/gflow"', "'/src/gflow[fit]'"),
        ('editable = "/src/gflow"', "--editable '/src/gflow[fit]'"),
        ('specifier = "==0.1"', "'gflow-scheduler[fit]'"),
        ('extras = ["mcp"], directory = "/src/gflow"', "'/src/gflow[fit,mcp]'"),
    ],
)
def test_uv_installs_again_with_all_that_was_there(tmp_path: Path, source: str, end: str) -> None:
    here = environment(tmp_path / "tools/gflow-scheduler", **{"uv-receipt.toml": RECEIPT % source})
    assert extra_hint("fit", here) == f"uv tool install --with numpy {end}"
    assert extra_hint("mcp,fit", here).endswith("[fit,mcp]'")


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_pip_of_the_active_environment(tmp_path: Path, variable: str) -> None:
    here = environment(tmp_path)._replace(environ={variable: str(tmp_path)})
    assert extra_hint("fit", here) == "pip install 'gflow-scheduler[fit]'"


def test_an_environment_that_is_not_active_is_named_by_its_interpreter(tmp_path: Path) -> None:
    here = environment(tmp_path)._replace(environ={"VIRTUAL_ENV": "/another"})
    assert extra_hint("mcp", here) == f"{tmp_path}/bin/python3 -m pip install 'gflow-scheduler[mcp]'"


def test_a_checkout_stays_editable(tmp_path: Path) -> None:
    package = tmp_path / "my gflow/src/gflow"
    package.mkdir(parents=True)
    (tmp_path / "my gflow/pyproject.toml").touch()
    here = Installation(str(package), "/venv/bin/python3", {"VIRTUAL_ENV": "/venv"})
    assert extra_hint("fit", here) == f"pip install -e '{tmp_path}/my gflow[fit]'"


def test_the_distribution_has_one_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    named = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/installation.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(set(project["optional-dependencies"]) - {"dev"})


def test_no_text_names_the_other_project() -> None:
    """`gflow` on PyPI is another project, which a hint must not install."""
    paths = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/**/*.py"),
        ROOT / "pyproject.toml",
    ]
    wrong = re.compile(r"(?<![\w/])gflow\[\w|(pipx? install|tool install|--upgrade) '?gflow(?![\w/-])")
    assert not [f"{path}: {match[0]}" for path in paths for match in wrong.finditer(path.read_text())]
