"""A user's machine to install packages on: an empty home, no compiler, no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
COMPILERS = (
    "cc",
    "gcc",
    "g++",
    "c++",
    "c89",
    "c99",
    "cpp",
    "clang",
    "tcc",
    "as",
    "ld",
    "x86_64-linux-gnu-gcc",
)


class Machine:
    """Runs commands in an empty home, without compiler and network."""

    def __init__(self, root: Path, wheelhouse: Path) -> None:
        self.home = root / "home"
        self.home.mkdir(parents=True)
        self.work = root / "work"
        self.work.mkdir()
        runtime = root / "run"
        runtime.mkdir(mode=0o700)
        self.programs = root / "programs"
        link_programs(self.programs)
        self.env = {
            "HOME": str(self.home),
            "PATH": str(self.programs),
            "LANG": "C.UTF-8",
            "XDG_RUNTIME_DIR": str(runtime),
            "MANPAGER": "cat",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheelhouse),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_OFFLINE": "1",
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": str(wheelhouse),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_CACHE_DIR": str(root / "uv-cache"),
        }

    def run(self, *words: str | Path) -> str:
        """Run a command that has to succeed; return what it prints."""
        line = [*no_network(), *map(str, words)]
        done = subprocess.run(
            line,
            env=self.env,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def has(self, program: str) -> bool:
        return shutil.which(program, path=self.env["PATH"]) is not None

    def add_to_path(self, folder: Path) -> None:
        self.env["PATH"] = f"{folder}:{self.env['PATH']}"

    def run_first_job(self) -> None:
        """What the README says first: start a daemon, submit a job, read its log."""
        self.run("gflowd", "up", "--simulate-gpus", "2x80G")
        try:
            job = self.run("gbatch", "--wait", "--gpus", "1", "echo GPU $CUDA_VISIBLE_DEVICES in $PWD")
            assert job == "Submitted batch job 1\n"
            assert self.run("gjob", "log", "1") == f"GPU 0 in {self.work}\n"
        finally:
            self.run("gflowd", "down")


def link_programs(folder: Path) -> None:
    """Fill a folder with links to the programs of the system, without compilers."""
    folder.mkdir()
    for source in ("/usr/sbin", "/usr/bin", "/bin"):
        for path in Path(source).iterdir():
            link = folder / path.name
            if not path.name.startswith(COMPILERS) or path.name.startswith(("ldd", "ldconfig", "aspell")):
                link.unlink(missing_ok=True)
                link.symlink_to(path)


@cache
def no_network() -> tuple[str, ...]:
    """The words before a command that take its network away; none where that is not allowed."""
    line = ("unshare", "--net")
    allowed = shutil.which("unshare") and not subprocess.run([*line, "true"], capture_output=True).returncode
    return line if allowed else ()


@cache
def find_python(version: str) -> str:
    """The path of the interpreter of this version of Python; skips the test if the machine has none."""
    found = [path for path in (shutil.which(f"python{version}"),) if path]
    found += map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")))
    for path in found:
        line = [path, "-c", "import sys, venv, ensurepip; print(sys.executable)"]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    pytest.skip(f"no Python {version} on this machine")
