"""Build hook: compiles the native shim and client (C) if there is a compiler. gflow works without them.

With GFLOW_COMPILE=1 the engine is compiled as well (scripts/compile): the same decisions in half the time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

FOLDER = Path("src/gflow/targets/local")
CLIENT = Path("src/gflow/client/native/client.c")
# The commands: shell scripts, or copies of the native client.
SCRIPTS = Path("scripts/bin")
# The commands that the daemon serves, as the client lists them. Without the dynamic linker each takes a
# quarter of a millisecond less, and 0.7 MB more.
SERVED = re.compile(r"served\[\] = \{(.*?)\}")
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-s")
# Hardened: in system mode it runs as root.
FLAGS += ("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fPIE", "-pie", "-Wl,-z,relro,-z,now")


class ReadmeHook(MetadataHookInterface):
    """Sets the description of the package: an index does not have the files to which the README links."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text()
        plain = re.sub(r"!?\[([^]]*)\]\((?!\w+:)[^)]*\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": plain}


class NativeShimHook(BuildHookInterface):
    """Runs before a wheel is built, and before an editable installation."""

    # Temporary folders of the native client and of the compiled engine.
    _folders: list[str] = []
    # What was compiled.
    _programs: list[Path] = []

    def dependencies(self) -> list[str]:
        return ["mypy>=1.13", "setuptools"] if os.environ.get("GFLOW_COMPILE") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_data["shared_scripts"] = {str(SCRIPTS): "."}
        self._folders, self._programs = [], []
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None or os.environ.get("GFLOW_NO_C"):
            self.app.display_warning("no C compiler: jobs and commands will be run by Python")
        else:
            self._build_shim(compiler, build_data)
            self._build_client(compiler, build_data)
        if os.environ.get("GFLOW_COMPILE") and version != "editable":
            self._build_engine(build_data)

    def _build_engine(self, build_data: dict[str, Any]) -> None:
        folder = self._make_folder()
        script = Path(self.root) / "scripts/compile"
        done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"GFLOW_COMPILE: {done.stderr}")
        for made in done.stdout.split():
            build_data["force_include"][f"{folder}/{made}"] = made
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        build_data.update(pure_python=False, infer_tag=False, tag=f"{python}-{python}-{platform_tag()}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        for folder in self._folders:
            shutil.rmtree(folder)

    def _make_folder(self) -> str:
        self._folders.append(tempfile.mkdtemp(prefix="gflow-build-"))
        return self._folders[-1]

    def _build_client(self, compiler: str, build_data: dict[str, Any]) -> None:
        folder, source = Path(self._make_folder()), Path(self.root) / CLIENT
        names = [one.name for one in (Path(self.root) / SCRIPTS).iterdir()]
        program, quick = folder / "client", folder / "static"
        if not self._compile(compiler, [str(source)], program):
            return
        (listed,) = SERVED.findall(source.read_text())
        served = re.findall(r'"(\w+)"', listed) if self._links_statically(compiler, source, quick) else []
        self._mark_platform(build_data, program)
        (commands := folder / "bin").mkdir()
        for name in names:
            shutil.copy(quick if name in served else program, commands / name)
        build_data["shared_scripts"] = {str(commands): "."}

    def _links_statically(self, compiler: str, source: Path, made: Path) -> bool:
        """Whether the client could be linked without shared libraries; not every system has static ones."""
        line = [compiler, *FLAGS, "-static-pie", "-o", str(made), str(source)]
        return subprocess.run(line, capture_output=True).returncode == 0

    def _build_shim(self, compiler: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / FOLDER
        sources = sorted(str(path) for path in (folder / "native").glob("*.c"))
        made = folder / "gflow-shim.new"
        if self._compile(compiler, sources, made):
            made.replace(folder / "gflow-shim")  # atomic: a running shim keeps its inode
            build_data["artifacts"].append(str(FOLDER / "gflow-shim"))
            self._mark_platform(build_data, folder / "gflow-shim")

    def _compile(self, compiler: str, sources: list[str], made: Path) -> bool:
        done = subprocess.run([compiler, *FLAGS, "-o", str(made), *sources], capture_output=True, text=True)
        if done.returncode:
            self.app.display_warning(f"{made.name} could not be built: {done.stderr}")
        return not done.returncode

    def _mark_platform(self, build_data: dict[str, Any], program: Path) -> None:
        self._programs.append(program)
        build_data.update(pure_python=False, infer_tag=False, tag=f"py3-none-{libc_tag(self._programs)}")


def libc_tag(programs: list[Path]) -> str:
    """The platform of programs that need only glibc: `manylinux` and the newest version that they use.

    Package indexes refuse `linux_x86_64`, which says nothing about the machines that can run it.
    """
    platform = platform_tag()
    if shutil.which("readelf") is None:
        return platform
    versions, libraries = set(), set()
    for program in programs:
        done = subprocess.run(["readelf", "-dV", str(program)], capture_output=True, text=True, check=True)
        versions |= {
            (int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", done.stdout)
        }
        libraries |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout))
    if not versions or libraries != {"libc.so.6"}:
        return platform
    major, minor = max(versions)
    return platform.replace("linux_", f"manylinux_{major}_{minor}_")


def platform_tag() -> str:
    import sysconfig

    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
