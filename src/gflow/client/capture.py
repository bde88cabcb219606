"""Capture the submitter's context for a job.

The working folder and environment (--chdir, --export, --config), the Python environments of --venv and
--conda-env, and the prediction in the file of --fit.
"""

from __future__ import annotations

import json
import os
from typing import Any

from gflow.client import hot_path
from gflow.errors import UsageError

MIB = 1 << 20
PLAN_HINT = "gflow plan --out plan.json or gflow fit --json > fit.json writes one"


def capture(values: dict[str, Any]) -> tuple[str, bytes]:
    """The job's working folder and environment block."""
    folder = os.path.abspath(values["chdir"]) if "chdir" in values else hot_path.working_folder()
    if not os.path.isdir(folder):
        if not is_elsewhere(values):
            raise UsageError(f"there is no folder {folder}")
        folder = hot_path.working_folder()
    environment = _exported(values.get("export", "ALL"))
    for name in values.get("unset", ()):  # a variable of sbatch that an option overrides
        environment.pop(os.fsencode(name), None)
    if "config" in values:
        environment[b"GFLOW_CONFIG"] = os.fsencode(os.path.abspath(values["config"]))
    if "venv" in values or "conda-env" in values:
        environment.pop(b"PYTHONHOME", None)
    return folder, b"\0".join(name + b"=" + value for name, value in environment.items())


def folder_there(values: dict[str, Any]) -> str:
    """The folder of --chdir for a job on a cluster, as it was given; empty: none."""
    chdir: str = values.get("chdir", "")
    return chdir if values.get("on") or values.get("overflow") else ""


def is_elsewhere(values: dict[str, Any]) -> bool:
    """Whether the target of the job is a cluster over SSH, which has folders of its own."""
    name = values.get("on") or values.get("overflow")
    if not name:
        return False
    from gflow.client import http

    return any(target["name"] == name and target.get("host") for target in http.get("/targets")["targets"])


def _exported(spec: str) -> dict[bytes, bytes]:
    """Parse --export: ALL, NONE, or a list of NAME (value from here) and NAME=value; ALL,A=b adds to ALL."""
    here = dict(os.environb)
    here.pop(EXPORT, None)  # of the job that this command runs in
    if spec == "ALL":
        return here
    kept: dict[bytes, bytes] = {}
    named: list[bytes] = []
    for name in BASIC:
        if name in here:
            kept[name] = here[name]
    for part in os.fsencode(spec).split(b","):
        name, equals, value = part.partition(b"=")
        if part == b"ALL":
            kept = here | kept
        elif part != b"NONE" and name:
            if equals:
                kept[name] = value
            elif name in here:
                kept[name] = here[name]
            named.append(name)
    if named:
        kept[EXPORT] = b",".join(named)
    return kept


def resolve(values: dict[str, Any]) -> dict[str, Any]:
    """Replace --venv and --conda-env by folders and --fit by its figure.

    The client resolves them, because they depend on the user's environment and working folder.
    """
    found = dict(values)
    if values.get("venv"):
        found["venv"] = _existing(os.path.abspath(values["venv"]), "--venv")
    if values.get("conda-env"):
        found["conda-env"] = _existing(_conda_prefix(values["conda-env"]), "--conda-env")
    if isinstance(values.get("fit"), str):
        found["fit"] = predicted_mib(values["fit"], values.get("gpus"))
    return found


def _existing(prefix: str, option: str) -> str:
    if not os.path.isdir(os.path.join(prefix, "bin")):
        raise UsageError(f"{option}: there is no environment at {prefix}")
    return prefix


def _conda_prefix(name: str) -> str:
    """Folder of the named environment: a path, or below one of conda's folders."""
    if "/" in name:
        return os.path.abspath(name)
    roots = [os.path.dirname(os.path.dirname(os.environ["CONDA_EXE"]))] if "CONDA_EXE" in os.environ else []
    if os.environ.get("CONDA_PREFIX"):
        base = os.environ["CONDA_PREFIX"]
        roots.append(base.partition("/envs/")[0])
    roots += [os.path.expanduser(f"~/{folder}") for folder in FOLDERS] + ["/opt/conda", "/opt/miniconda3"]
    places = [root if name == "base" else f"{root}/envs/{name}" for root in roots]
    places.append(os.path.expanduser(f"~/.conda/envs/{name}"))
    for place in places:
        if os.path.isdir(place):
            return place
    hint = "conda env list shows the environments"
    if name.isdecimal():
        hint = f"-c is --conda-env here; Slurm's -c is --cpus-per-task: --cpus {name}"
    raise UsageError(f"there is no conda environment {name!r}", hint=hint)


# The names that --export gave: only these variables are sent to a cluster elsewhere.
EXPORT = b"GFLOW_EXPORT"
BASIC = (b"HOME", b"USER", b"LOGNAME", b"SHELL", b"PATH", b"LANG")
FOLDERS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba")


def read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def predicted_mib(path: str, gpus: int | None) -> int:
    """Predicted MiB per GPU in the file. `gpus`: number of GPUs of the job, if known."""
    try:
        found = json.loads(read_file(path))
    except ValueError:
        raise UsageError(f"{path} is not a plan: it is not JSON", hint=PLAN_HINT) from None
    way = found.get("chosen") if isinstance(found, dict) else None
    size = _predicted_bytes(found, way)
    if size is None:
        raise UsageError(f"{path} contains no prediction", hint=PLAN_HINT)
    planned = way.get("gpus") if isinstance(way, dict) else None
    if gpus is not None and type(planned) is int and planned != gpus:
        raise UsageError(
            f"{path} is a plan for {planned} GPUs, and the job asks for {gpus}", hint=f"--gpus {planned}"
        )
    return -(-size // MIB)


def _predicted_bytes(found: Any, way: Any) -> int | None:
    """Bytes per GPU: of the chosen setup of a plan, or of a prediction."""
    size = way.get("bytes") if isinstance(way, dict) else None
    if size is None and isinstance(found, dict):
        size = found.get("process_bytes")
    return size if type(size) is int and size > 0 else None
