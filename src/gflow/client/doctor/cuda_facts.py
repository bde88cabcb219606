"""Facts about CUDA outside of Python packages: toolkits, nvcc, libraries of the system."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress

from gflow.client.doctor.programs import output_of, text_of
from gflow.diagnosis.doctor.facts import CudaFacts, Toolkit

TOOLKITS = ("/usr/local/cuda-*", "/usr/local/cuda", "/opt/cuda", "/opt/cuda-*", "/usr/lib/cuda")
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")


def read_cuda(environ: Mapping[str, str] = os.environ) -> CudaFacts:
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or ""
    nvcc = shutil.which("nvcc", path=environ.get("PATH")) or ""
    return CudaFacts(
        toolkits=find_toolkits([home] if home else []),
        nvcc=nvcc,
        nvcc_version=nvcc_version(output_of([nvcc, "--version"]) or "") if nvcc else "",
        home=home,
        is_home_missing=bool(home) and not os.path.isdir(home),
        nccl=_library_version("nccl"),
        cudnn=_library_version("cudnn"),
    )


def find_toolkits(more: list[str], patterns: tuple[str, ...] = TOOLKITS) -> tuple[Toolkit, ...]:
    """The toolkits on disk, each once, the newest first."""
    folders = [*more, *(path for pattern in patterns for path in glob.glob(pattern))]
    found: dict[str, Toolkit] = {}
    for folder in folders:
        version = toolkit_version(folder)
        if version:
            found.setdefault(os.path.realpath(folder), Toolkit(folder, version))
    return tuple(sorted(found.values(), key=lambda one: [*map(int, one.version.split("."))], reverse=True))


def toolkit_version(folder: str) -> str:
    """The version in version.json or version.txt of a toolkit; empty: it is none."""
    with suppress(ValueError, KeyError, TypeError):
        version = str(json.loads(text_of(f"{folder}/version.json"))["cuda"]["version"])
        return ".".join(re.findall(r"\d+", version)[:2])
    found = re.search(r"CUDA Version (\d+\.\d+)", text_of(f"{folder}/version.txt"))
    return found[1] if found else ""


def nvcc_version(text: str) -> str:
    found = re.search(r"release (\d+\.\d+)", text)
    return found[1] if found else ""


def _library_version(name: str, folders: tuple[str, ...] = LIBRARIES) -> str:
    """The version in the file name of a library: 2.21.5 of libnccl.so.2.21.5."""
    files = [path for folder in folders for path in glob.glob(f"{folder}/lib{name}.so.*")]
    versions = [path.rpartition(".so.")[2] for path in files]
    return max(versions, key=len, default="")
