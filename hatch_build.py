"""Build hook: compiles the native shim (C) into the package if there is a compiler. gflow works without it.

With GFLOW_COMPILE=1 the engine is compiled as well (scripts/compile): the same decisions in half the time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/gflow/targets/local")
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-s")
# Hardened: in system mode it runs as root.
FLAGS += ("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fPIE", "-pie", "-Wl,-z,relro,-z,now")


class NativeShimHook(BuildHookInterface):
    """Runs before a wheel is built, and before an editable installation."""

    # Temporary folder of the compiled engine.
    _folder = ""

    def dependencies(self) -> list[str]:
        return ["mypy>=1.13", "setuptools"] if os.environ.get("GFLOW_COMPILE") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._build_shim(build_data)
        if os.environ.get("GFLOW_COMPILE") and version != "editable":
            self._build_engine(build_data)

    def _build_engine(self, build_data: dict[str, Any]) -> None:
        self._folder = folder = tempfile.mkdtemp(prefix="gflow-engine-")
        script = Path(self.root) / "scripts/compile"
        done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"GFLOW_COMPILE: {done.stderr}")
        for made in done.stdout.split():
            build_data["force_include"][f"{folder}/{made}"] = made
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        build_data.update(pure_python=False, infer_tag=False, tag=f"{python}-{python}-{platform_tag()}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder:
            shutil.rmtree(self._folder)

    def _build_shim(self, build_data: dict[str, Any]) -> None:
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None or os.environ.get("GFLOW_NO_C"):
            self.app.display_warning("no C compiler: gflow will run every job by its Python shim")
            return
        folder = Path(self.root) / FOLDER
        sources = sorted(str(path) for path in (folder / "native").glob("*.c"))
        made = folder / "gflow-shim.new"
        done = subprocess.run([compiler, *FLAGS, "-o", str(made), *sources], capture_output=True, text=True)
        if done.returncode:
            self.app.display_warning(f"the native shim could not be built: {done.stderr}")
            return
        made.replace(folder / "gflow-shim")  # atomic: a running shim keeps its inode
        build_data["artifacts"].append(str(FOLDER / "gflow-shim"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"


def platform_tag() -> str:
    import sysconfig

    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
