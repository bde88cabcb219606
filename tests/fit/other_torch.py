"""Another version of PyTorch for a test, without a GPU and without the libraries of CUDA.

The wheels on PyPI are CUDA builds. They need gigabytes of NVIDIA's libraries to be loaded, none of which a
prediction calls. Here a library of each name is compiled in which every function fails, as without a GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Libraries that every Linux has, or that the wheel brings.
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libgomp|ld-linux-x86-64)\.so")
# Functions without a version in their name are looked up in any library.
FOREIGN = re.compile(r"(cu|nccl|nv)[A-Za-z]")
NO_DEVICE = 100


def install(packages: list[str], folder: Path) -> None:
    """Install packages into a folder, without what they depend on."""
    words = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ]
    subprocess.run([*words, "--no-deps", "--target", folder, *packages], check=True)


def environment(folder: Path, libraries: Path) -> dict[str, str]:
    """Return the environment in which the packages of a folder come before those of this Python."""
    if (folder / "torch").is_dir():
        replace_cuda(folder / "torch" / "lib", libraries)
    return os.environ | {"PYTHONPATH": str(folder), "LD_LIBRARY_PATH": str(libraries)}


def replace_cuda(torch_libraries: Path, out: Path) -> None:
    """Compile a library for each one that PyTorch's need and nobody has."""
    out.mkdir()
    files = [path for path in torch_libraries.iterdir() if path.name.endswith(".so")]
    own = {path.name for path in torch_libraries.iterdir()}
    needed = {name for path in files for name in _needed(path)}
    missing = sorted(name for name in needed if name not in own and not SYSTEM.match(name))
    functions = _functions(files, missing)
    for name in missing:
        _compile(name, functions[name], out)


def _needed(path: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _output("readelf", "--dynamic", path))


def _functions(files: list[Path], missing: list[str]) -> dict[str, dict[str, str]]:
    """Return the functions that each missing library has to define, with their versions."""
    wanted: dict[str, str] = {}
    defined: set[str] = set()
    for path in files:
        for line in _output("nm", "--dynamic", path).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.partition("@")
            if kind in "Uw":
                wanted[name] = version.lstrip("@")
            else:
                defined.add(name)
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, version in wanted.items():
        library = version if version in missing else missing[0]
        if version == "NVSHMEM":  # the one version that is not the name of its library
            library = next(one for one in missing if "nvshmem" in one)
        if name not in defined and (version in missing or version == "NVSHMEM" or FOREIGN.match(name)):
            found[library][name] = version
    return found


def _compile(name: str, functions: dict[str, str], out: Path) -> None:
    code = "".join(
        f'const char *{one}(void) {{ return "no device"; }}\n'
        if "String" in one or "ErrorName" in one
        else f"int {one}(void) {{ return {NO_DEVICE}; }}\n"
        for one in functions
    )
    version = next((one for one in functions.values() if one), "")
    source, script = out / "library.c", out / "library.map"
    source.write_text(code)
    script.write_text(f"{version} {{ global: *; }};\n")
    words = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", out / name, f"-Wl,-soname,{name}", source]
    subprocess.run([*words, *([f"-Wl,--version-script={script}"] if version else [])], check=True)


def _output(*words: object) -> str:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout
