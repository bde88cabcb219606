"""Environment variables that limit how much memory of a shared GPU each framework uses.

PyTorch accepts a memory fraction in its environment since 2.10. Earlier versions fail on an unknown key. So
its library is searched for the name of the key.
"""

from __future__ import annotations

import glob
import mmap
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

KEY = "per_process_memory_fraction"
# Memory of a CUDA context, which frameworks do not count.
CONTEXT_MIB = 640
PYTHONS = ("python3", "python")
PLACES = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages")
LIBRARIES = ("libc10_cuda.so", "libc10.so")


def shared_environment(
    limit_mib: int, memories_mib: Iterable[int], environ: Mapping[str, str], *, torch: bool
) -> dict[str, str]:
    """Variables for a job that may use `limit_mib` of GPUs with so much memory each."""
    usable = max(limit_mib - CONTEXT_MIB, limit_mib // 2)
    fraction = f"{min(1.0, usable / max(memories_mib)):.4f}"
    variables = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction,
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    if torch:
        said = environ.get("PYTORCH_ALLOC_CONF") or environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        variables["PYTORCH_CUDA_ALLOC_CONF"] = with_fraction(said, fraction)
        if "PYTORCH_ALLOC_CONF" in environ:  # the newer name, which wins where it is known
            variables["PYTORCH_ALLOC_CONF"] = variables["PYTORCH_CUDA_ALLOC_CONF"]
    return variables


def with_fraction(said: str, fraction: str) -> str:
    """The user's allocator settings with our fraction; their own only if it is smaller."""
    kept = []
    for part in re.split(r",(?![^\[]*\])", said):
        name, _, value = part.strip().partition(":")
        if name == KEY:
            with suppress(ValueError):
                fraction = min(fraction, value.strip(), key=float)
        elif name:
            kept.append(part.strip())
    return ",".join([*kept, f"{KEY}:{fraction}"])


def torch_takes_fraction(command: tuple[str, ...], environ: Mapping[str, str], cwd: str) -> bool:
    """Whether every PyTorch that this job may use knows the key. Reads files: not for the loop."""
    found = [library for prefix in _prefixes(command, environ, cwd) for library in torch_libraries(prefix)]
    return bool(found) and all(map(_knows, found))


def torch_libraries(prefix: str) -> list[str]:
    """The folders of PyTorch's libraries below a Python installation."""
    return [folder for place in PLACES for folder in glob.glob(f"{glob.escape(prefix)}/{place}/torch/lib")]


def _prefixes(command: tuple[str, ...], environ: Mapping[str, str], cwd: str) -> list[str]:
    """The Python installations that a job may use: its program's, and the first of its PATH."""
    folders = []
    if command and "/" in command[0]:
        folders.append(os.path.dirname(os.path.join(cwd, command[0])))
    path = environ.get("PATH", "").split(":")
    for name in (*PYTHONS, *command[:1]):
        folders += [folder for folder in path if folder and os.access(f"{folder}/{name}", os.X_OK)][:1]
    prefixes = [os.path.dirname(os.path.normpath(os.path.join(cwd, folder))) for folder in folders]
    home = [f"{environ['HOME']}/.local"] if "HOME" in environ else []
    usual = ["/usr/local", "/usr"] if "/usr" in prefixes else []
    return list(dict.fromkeys([*prefixes, *home, *usual]))


def _knows(folder: str) -> bool:
    """Whether this PyTorch has the key's name in it."""
    for name in LIBRARIES:
        with (
            suppress(OSError, ValueError),
            open(f"{folder}/{name}", "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            if text.find(KEY.encode()) >= 0:
                return True
    return False
