"""The command that adds an extra (`fit`, `train`, `plot`, `mcp`, `tui`, `spy`) to an installed gflow."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# The name on PyPI, where `gflow` is another project. The import name is gflow.
DISTRIBUTION = "gflow-scheduler"
# Files of pipx and of `uv tool` in the environment of a program.
PIPX = "pipx_metadata.json"
UV = "uv-receipt.toml"


class Installation(NamedTuple):
    """How gflow was installed: the folder of the package gflow, its interpreter, and the variables."""

    package: str
    python: str
    environ: Mapping[str, str]

    @property
    def prefix(self) -> str:
        return os.path.dirname(os.path.dirname(os.path.abspath(self.python)))

    def has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.prefix, name))


def install_hint(extra: str) -> str:
    """The command that installs an extra, or several (`spy,tui`), where the running Python is."""
    return extra_hint(extra, _running())


def packages_hint(*packages: str) -> str:
    """The command that installs other packages in the environment of the running Python."""
    here = _running()
    if here.has(PIPX):
        return shlex.join(_inject(here, packages))
    if here.has(UV):
        return shlex.join(_uv_tool(here, set(), packages))
    return shlex.join([*_pip(here), *packages])


def extra_hint(extra: str, here: Installation) -> str:
    """As `install_hint`, for any installation."""
    if here.has(PIPX):  # pipx does not inject a package that is there, so its requirements are named
        site = os.path.dirname(here.package)
        return shlex.join(
            _inject(here, [name for one in extra.split(",") for name in requirements(one, site)])
        )
    if here.has(UV):
        return shlex.join(_uv_tool(here, set(extra.split(",")), ()))
    if checkout := _checkout(here.package):
        return shlex.join([*_pip(here), "-e", f"{checkout}[{extra}]"])
    return shlex.join([*_pip(here), f"{DISTRIBUTION}[{extra}]"])


def requirements(extra: str, site: str) -> list[str]:
    """The packages of an extra, from the metadata in a folder of packages."""
    from importlib.metadata import distributions

    lines = [line for found in distributions(name=DISTRIBUTION, path=[site]) for line in found.requires or ()]
    parts = [line.replace("'", '"').partition(";") for line in lines]
    return [name.strip() for name, _, marker in parts if marker.strip() == f'extra == "{extra}"']


def _running() -> Installation:
    return Installation(os.path.dirname(os.path.abspath(__file__)), sys.executable, os.environ)


def _inject(here: Installation, packages: Iterable[str]) -> list[str]:
    return ["pipx", "inject", os.path.basename(here.prefix), *packages]


def _uv_tool(here: Installation, extras: set[str], packages: Iterable[str]) -> list[str]:
    """`uv tool install` replaces the earlier requirements, so they are named again."""
    import tomllib

    with open(os.path.join(here.prefix, UV), "rb") as file:
        needs: list[dict[str, Any]] = tomllib.load(file).get("tool", {}).get("requirements", [])
    own = next((need for need in needs if need.get("name") == DISTRIBUTION), {})
    others = [str(need.get("name")) for need in needs if need is not own]
    more = [word for name in (*others, *packages) for word in ("--with", name)]
    editable = ["--editable"] if "editable" in own else []
    source = own.get("directory") or own.get("editable") or DISTRIBUTION
    wanted = ",".join(sorted(extras.union(own.get("extras", ()))))
    return ["uv", "tool", "install", *more, *editable, f"{source}[{wanted}]" if wanted else source]


def _checkout(package: str) -> str:
    """The folder of the repository that the package is imported from; empty: it is installed."""
    above = os.path.dirname(package)
    root = os.path.dirname(above)
    has_project = os.path.exists(os.path.join(root, "pyproject.toml"))
    return root if os.path.basename(above) == "src" and has_project else ""


def _pip(here: Installation) -> list[str]:
    """`pip install` of the active environment, or of another one by its interpreter."""
    is_active = here.prefix in (here.environ.get("VIRTUAL_ENV"), here.environ.get("CONDA_PREFIX"))
    return ["pip", "install"] if is_active else [here.python, "-m", "pip", "install"]
