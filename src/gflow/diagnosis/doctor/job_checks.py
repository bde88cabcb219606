"""Checks of the environment of a job: Python, CUDA_VISIBLE_DEVICES, libraries, modules, folder, limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gflow.diagnosis.doctor.compatibility import version_of
from gflow.diagnosis.doctor.facts import Facts
from gflow.diagnosis.doctor.host_checks import check_disk, check_process_limits
from gflow.diagnosis.doctor.job_facts import JobEnvironment
from gflow.diagnosis.doctor.report import CheckResult, ok, problem, warning
from gflow.diagnosis.doctor.version_checks import (
    check_libraries,
    check_python,
    check_torch_copies,
    check_versions,
)

# Settings that make runs slow: remains of an earlier search for an error.
SLOW = {
    "CUDA_LAUNCH_BLOCKING": "each kernel is waited for",
    "NCCL_P2P_DISABLE": "GPUs copy through host memory",
    "NCCL_SHM_DISABLE": "processes of one machine talk over the network",
    "NCCL_IB_DISABLE": "InfiniBand is not used",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "each tensor is allocated by the driver",
    "NCCL_ALGO": "the algorithm of NCCL is fixed",
}
OFF = ("", "0", "false", "no")


def check_job(job: JobEnvironment, facts: Facts) -> list[CheckResult]:
    """The results for the environment of a job, on the machine of these facts."""
    seen = facts._replace(python=job.python)
    parts = (
        _check_source(job),
        _check_devices(job),
        check_python(seen),
        _check_environments(job),
        _check_python_path(job),
        check_versions(seen),
        check_torch_copies(seen),
        check_libraries(seen),
        _check_conda_libraries(job),
        _check_loaded(job),
        _check_modules(job),
        _check_settings(job),
        _check_folder(job),
        _check_limits(job, facts.host.has_infiniband),
    )
    return [result for part in parts for result in part]


def _check_source(job: JobEnvironment) -> Iterator[CheckResult]:
    if job.trouble:
        yield warning(
            "job-environment",
            f"the environment of job {job.job} is not known: {job.trouble}",
            f"gjob show {job.job}",
        )
    elif job.pid is not None:
        yield ok("job-environment", f"job {job.job} ({job.state}): environment of its process {job.pid}")
    else:
        yield ok("job-environment", f"job {job.job} ({job.state}): environment as submitted")


# ------------------------------------------------------------ GPUs


def _check_devices(job: JobEnvironment) -> Iterator[CheckResult]:
    own = set(job.own_devices.split(","))
    for used in job.used_devices:
        if not set(used.split(",")) <= own:
            yield problem(
                "job-devices",
                f"a process of the job has CUDA_VISIBLE_DEVICES={used}; the GPUs of the job are"
                f" {job.own_devices or 'none'}",
                "remove the assignment of CUDA_VISIBLE_DEVICES from the script",
            )
            break
    for line in job.device_lines[:1]:
        yield problem(
            "job-devices",
            f"the job sets CUDA_VISIBLE_DEVICES itself, and may use GPUs of other jobs: {line}",
            "remove the line; gflow sets the variable for the GPUs of the job",
        )
    if not job.gpus and job.submitted_devices:
        yield warning(
            "job-devices",
            f"the job was submitted with CUDA_VISIBLE_DEVICES={job.submitted_devices} and without --gpus:"
            " it sees no GPU",
            f"gjob redo {job.job} --gpus 1",
        )


# ------------------------------------------------------------ Python


def _check_environments(job: JobEnvironment) -> Iterator[CheckResult]:
    for folder in job.missing_folders:
        yield problem(
            "job-venv",
            f"the Python environment of the job is gone: {folder}",
            f"gjob redo {job.job} --venv FOLDER",
        )
    program = job.python.executable
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = job.variables.get(name, "")
        if folder and program and folder not in job.missing_folders:
            yield from _check_active(job, name, folder.rstrip("/"), program)


def _check_active(job: JobEnvironment, name: str, folder: str, program: str) -> Iterator[CheckResult]:
    inner = job.variables.get("VIRTUAL_ENV", "") if name == "CONDA_PREFIX" else ""
    if program.startswith(folder + "/") or (inner and program.startswith(inner)):
        yield ok("job-venv", f"{name} is {folder}")
    else:
        yield warning(
            "job-venv",
            f"{name} is {folder}, and the job runs {program}",
            f"gjob redo {job.job} --venv {folder}"
            if name == "VIRTUAL_ENV"
            else f"gbatch --conda-env {folder} …",
        )


def _check_python_path(job: JobEnvironment) -> Iterator[CheckResult]:
    """Folders of another Python version in PYTHONPATH: compiled packages fail to load."""
    version = ".".join(map(str, version_of(job.python.version)))
    for folder in job.variables.get("PYTHONPATH", "").split(":"):
        found = re.search(r"/python(\d+\.\d+)/", folder + "/")
        if found and job.python.version and found[1] != version:
            yield warning(
                "job-pythonpath",
                f"PYTHONPATH has packages of Python {found[1]}, and the job runs {version}: {folder}",
                "unset PYTHONPATH before gbatch",
            )


# ------------------------------------------------------------ libraries and modules


def _check_conda_libraries(job: JobEnvironment) -> Iterator[CheckResult]:
    conda = job.variables.get("CONDA_PREFIX", "")
    for folder in job.variables.get("LD_LIBRARY_PATH", "").split(":"):
        found = re.match(r"(.*conda[^/]*(?:/envs/[^/]+)?|.*/envs/[^/]+)/lib/?$", folder)
        if found and found[1] != conda:
            yield warning(
                "job-library-conda",
                f"LD_LIBRARY_PATH has the libraries of another conda environment: {folder}",
                "unset LD_LIBRARY_PATH, then activate one environment",
            )


def _check_loaded(job: JobEnvironment) -> Iterator[CheckResult]:
    """Two files of one library in one process."""
    versions: dict[str, list[str]] = {}
    for path in job.loaded:
        name = path.rpartition("/")[2].partition(".so")[0]
        versions.setdefault(name, []).append(path)
    for name, found in versions.items():
        if len(found) > 1:
            yield problem(
                "job-library-twice",
                f"the job has loaded {name} twice: {found[0]} and {found[1]}",
                "unset LD_LIBRARY_PATH and LD_PRELOAD before gbatch",
            )


def _check_modules(job: JobEnvironment) -> Iterator[CheckResult]:
    modules = [name for name in job.variables.get("LOADEDMODULES", "").split(":") if name]
    cuda = version_of(job.python.torch_cuda or "")[0]
    for name in modules:
        found = re.match(r"(?:.*/)?cuda(?:toolkit)?[/-](\d+)", name, re.IGNORECASE)
        if found and cuda and int(found[1]) != cuda:
            yield warning(
                "job-modules",
                f"the module {name} is loaded, and torch has CUDA {cuda}",
                f"module unload {name}",
            )
    if modules:
        yield ok("job-modules", f"modules: {', '.join(modules)}")


def _check_settings(job: JobEnvironment) -> Iterator[CheckResult]:
    for name, effect in SLOW.items():
        value = job.variables.get(name, "")
        if value.lower() not in OFF:
            yield warning("job-settings", f"{name}={value} makes the job slow: {effect}", f"unset {name}")


def _check_folder(job: JobEnvironment) -> Iterator[CheckResult]:
    if job.disk is None and job.cwd and not job.trouble:
        yield problem(
            "job-folder", f"the working folder of the job does not exist: {job.cwd}", f"mkdir -p {job.cwd}"
        )
    if job.disk is not None:
        yield from check_disk(job.disk)


def _check_limits(job: JobEnvironment, has_infiniband: bool) -> Iterator[CheckResult]:
    if job.limits is not None:
        yield from check_process_limits(job.limits, has_gpus=job.gpus > 0, has_infiniband=has_infiniband)
