"""Facts about the environment of a job, and the variables that a diagnosis needs."""

from __future__ import annotations

from typing import NamedTuple

from gflow.diagnosis.doctor.facts import Disk, Limits, PythonFacts

# Variables that are read; the others may be secrets and stay where they are.
VARIABLES = frozenset({
    "PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE",
    "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LOADEDMODULES", "TMPDIR", "HF_HOME",
    "OMP_NUM_THREADS", "NVIDIA_VISIBLE_DEVICES",
})  # fmt: skip
PREFIXES = ("CUDA_", "NCCL_", "TORCH_", "PYTORCH_")


def relevant(environ: bytes) -> dict[str, str]:
    """The variables of an environment block, as in /proc/PID/environ, that a diagnosis needs."""
    pairs = (entry.partition(b"=") for entry in environ.split(b"\0") if b"=" in entry)
    texts = ((name.decode(errors="replace"), value.decode(errors="replace")) for name, _, value in pairs)
    return {name: value for name, value in texts if name in VARIABLES or name.startswith(PREFIXES)}


class JobEnvironment(NamedTuple):
    """The environment of a job: of its processes if it runs here, else as it was submitted."""

    job: str
    state: str = ""
    # The process whose environment was read; None: the job does not run, or its processes are not readable.
    pid: int | None = None
    # Why nothing could be read.
    trouble: str = ""
    gpus: int = 0
    variables: dict[str, str] = {}
    # CUDA_VISIBLE_DEVICES as submitted, as gflow set it, and as the job's other processes have it.
    submitted_devices: str = ""
    own_devices: str = ""
    used_devices: tuple[str, ...] = ()
    # Lines of the command or script that set CUDA_VISIBLE_DEVICES.
    device_lines: tuple[str, ...] = ()
    cwd: str = ""
    disk: Disk | None = None
    limits: Limits | None = None
    python: PythonFacts = PythonFacts()
    # Folders of Python environments that no longer exist.
    missing_folders: tuple[str, ...] = ()
    # CUDA libraries that its processes have loaded.
    loaded: tuple[str, ...] = ()
