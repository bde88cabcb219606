"""Facts about a Python environment: its packages along sys.path, read without importing them."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress

from gflow.client.doctor.programs import output_of, text_of
from gflow.diagnosis.doctor.facts import LibraryFolder, Pin, PythonFacts

# Packages whose versions are read, by the start of their names.
PACKAGES = ("torch", "torchvision", "torchaudio", "transformers", "accelerate", "deepspeed", "jax",
            "tensorflow", "numpy", "triton", "xformers", "flash_attn", "nvidia_")  # fmt: skip
# Packages whose exact requirements are compared with the installed versions.
PINNING = ("torch", "torchvision", "torchaudio", "xformers")
ASK = "import sys, json; print(json.dumps([sys.version.split()[0], sys.prefix, sys.path]))"
# Libraries that must be the same for all parts of a program.
LIBRARIES = ("libcudart.so", "libnccl.so", "libcudnn.so", "libcublas.so", "libcuda.so")
NAMES = ("python3", "python")


def read_python(program: str = "", environ: Mapping[str, str] = os.environ) -> PythonFacts:
    """The environment of a Python program; by default the one that `python3` on PATH belongs to."""
    path = environ.get("PATH")
    program = program or next(filter(None, (shutil.which(name, path=path) for name in NAMES)), "")
    libraries = tuple(library_folders(environ.get("LD_LIBRARY_PATH", "")))
    if not program:
        return PythonFacts(library_folders=libraries)
    try:
        version, _, folders = json.loads(output_of([program, "-c", ASK], environ) or "")
    except ValueError:
        return PythonFacts(program, trouble="it does not print its paths", library_folders=libraries)
    folders = [folder for folder in folders if folder.startswith("/")]
    packages = read_packages(folders)
    return PythonFacts(
        executable=program,
        version=version,
        packages=packages,
        torch_cuda=_torch_cuda(folders, packages),
        torch_folders=_torch_folders(folders),
        pins=tuple(_broken_pins(folders, packages)),
        library_folders=libraries,
    )


def read_packages(folders: list[str]) -> dict[str, str]:
    """Names and versions of the packages; of equal names the one that Python finds first."""
    found: dict[str, str] = {}
    for name, version, _ in _distributions(folders):
        if name.startswith(PACKAGES):
            found.setdefault(name, version)
    return found


def _distributions(folders: list[str]) -> Iterator[tuple[str, str, str]]:
    """Every installed distribution: name, version, folder of its metadata."""
    for folder in folders:
        with suppress(OSError):
            for entry in os.listdir(folder):
                stem, dot, kind = entry.rpartition(".")
                if dot and kind in ("dist-info", "egg-info"):
                    name, _, version = stem.partition("-")
                    yield _normal(name), version.partition("-")[0], f"{folder}/{entry}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _torch_folders(folders: list[str]) -> tuple[str, ...]:
    """Where torch is, each installation once."""
    found = dict.fromkeys(
        os.path.realpath(folder) for folder in folders if os.path.exists(f"{folder}/torch/version.py")
    )
    return tuple(found)


def _torch_cuda(folders: list[str], packages: dict[str, str]) -> str | None:
    """`torch.version.cuda`, read from its file: importing torch takes seconds."""
    for folder in folders:
        if os.path.exists(f"{folder}/torch/version.py"):
            text = text_of(f"{folder}/torch/version.py")
            found = re.search(r"^cuda(?:: [^=]*)? = '([\d.]+)'", text, re.MULTILINE)
            packages.setdefault("torch", _torch_version(text))
            return found[1] if found else ""
    return "" if "torch" in packages else None


def _torch_version(text: str) -> str:
    found = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    return found[1] if found else "?"


def _broken_pins(folders: list[str], packages: dict[str, str]) -> Iterator[Pin]:
    """Exact requirements of PyTorch's packages that are not met."""
    seen = set[str]()
    for name, _, folder in _distributions(folders):
        if name in seen or name not in PINNING:
            continue
        seen.add(name)
        for wanted, version in parse_pins(text_of(f"{folder}/METADATA")):
            key = _normal(wanted)
            if key.startswith(PACKAGES) and packages.get(key, "").partition("+")[0] != version:
                yield Pin(name, wanted, version, packages.get(key, ""))


def parse_pins(metadata: str) -> Iterator[tuple[str, str]]:
    """Requirements such as `nvidia-nccl-cu12==2.21.5; platform_system == "Linux"`: name and version."""
    for line in metadata.partition("\n\n")[0].splitlines():
        found = re.match(r"Requires-Dist: ([\w.-]+) ?\(?==([\w.]+)\)?(?: ?;(.*))?$", line)
        if found and "extra ==" not in (found[3] or "") and _applies(found[3] or ""):
            yield found[1], found[2]


def _applies(condition: str) -> bool:
    """Whether a condition is about this machine; only the parts that PyTorch uses are understood."""
    machines = re.findall(r"platform_machine == [\"'](\w+)[\"']", condition)
    systems = re.findall(r"(?:platform_system|sys_platform) == [\"'](\w+)[\"']", condition)
    return (not machines or os.uname().machine in machines) and (
        not systems or bool({"Linux", "linux"} & set(systems))
    )


def library_folders(path: str) -> Iterator[LibraryFolder]:
    """The folders of LD_LIBRARY_PATH that have libraries of CUDA."""
    for folder in dict.fromkeys(filter(None, path.split(":"))):
        names = {
            os.path.basename(file)
            for name in LIBRARIES
            for file in glob.glob(f"{glob.escape(folder)}/{name}*")
        }
        if names:
            yield LibraryFolder(folder, tuple(sorted(names)))
