"""The variables that gflow adds to the submitted environment of a job."""

from __future__ import annotations

import os

from gflow.core.model import Job, Spec
from gflow.core.sweep_template import variable
from gflow.daemon.loop import timers

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"


def job_variables(job: Job, script: bytes | None, devices: str | None) -> dict[str, str]:
    """Variables that describe the job. `devices`: CUDA_VISIBLE_DEVICES; None: the cluster sets it."""
    variables = {
        "GFLOW_JOB_ID": job.label,
        "GFLOW_JOB_NAME": job.file_name,
        "GFLOW_ATTEMPT": str(job.attempt),
        "GFLOW_RESTART_COUNT": str(job.attempt - 1),
        "GFLOW_GPUS": str(job.spec.gpus),
        # The Slurm target overrides this.
        "GFLOW_NODES": "1",
    }
    if job.spec.effective_batch:
        variables["GFLOW_EFFECTIVE_BATCH"] = str(job.spec.effective_batch)
    if devices is not None:  # empty without --gpus, so that the job sees no GPU
        variables |= {"CUDA_VISIBLE_DEVICES": devices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if job.spec.requeue:
        variables["GFLOW_REQUEUE"] = "1"
    if job.spec.time_limit_s and job.started_boot is not None:
        # In seconds of CLOCK_BOOTTIME, the clock of time limits. Later changes of the limit are not seen.
        variables["GFLOW_DEADLINE"] = f"{timers.of_kernel(job.started_boot + job.spec.time_limit_s):.3f}"
    if job.task is not None:
        variables["GFLOW_ARRAY_JOB_ID"] = str(job.number)
        variables["GFLOW_ARRAY_TASK_ID"] = str(job.task)
    if job.spec.gpu_memory_mib:
        variables["GFLOW_GPU_MEMORY_MB"] = str(job.spec.gpu_memory_mib)
    if job.spec.script_path:
        variables["GFLOW_SCRIPT"] = job.spec.script_path
    for name, value in job.spec.parameters:
        variables[variable(name)] = value
    if script is not None and b"#SBATCH" in script:
        variables |= slurm_variables(job)
    return variables


def slurm_variables(job: Job) -> dict[str, str]:
    """SLURM_* variables that batch scripts use. Not SLURM_NTASKS: it makes frameworks expect srun."""
    variables = {
        "SLURM_JOB_ID": job.label,
        "SLURM_JOBID": job.label,
        "SLURM_JOB_NAME": job.file_name,
        "SLURM_SUBMIT_DIR": job.spec.cwd,
    }
    if job.task is not None:
        variables["SLURM_ARRAY_JOB_ID"] = str(job.number)
        variables["SLURM_ARRAY_TASK_ID"] = str(job.task)
    if job.spec.cpus:
        variables["SLURM_CPUS_PER_TASK"] = str(job.spec.cpus)
    if job.attempt > 1:
        variables["SLURM_RESTART_COUNT"] = str(job.attempt - 1)
    return variables


def block(variables: dict[str, str]) -> bytes:
    """Encode variables as NAME=VALUE entries that end with NUL, as in /proc/PID/environ."""
    return os.fsencode("".join([f"{name}={value}\0" for name, value in variables.items()]))


def activation_variables(spec: Spec, environ: bytes) -> bytes:
    """The variables that activate the job's venv and conda environment. No activate script is sourced."""
    if not spec.venv and not spec.conda_env:
        return b""
    path = next((entry[5:] for entry in environ.split(b"\0") if entry.startswith(b"PATH=")), DEFAULT_PATH)
    changed: dict[bytes, bytes] = {}
    if spec.conda_env:
        prefix = os.fsencode(spec.conda_env)
        parent, _, name = prefix.rpartition(b"/")
        path = prefix + b"/bin:" + path
        changed[b"CONDA_PREFIX"] = prefix
        changed[b"CONDA_DEFAULT_ENV"] = name if parent.endswith(b"/envs") else b"base"
    if spec.venv:
        path = os.fsencode(spec.venv) + b"/bin:" + path
        changed[b"VIRTUAL_ENV"] = os.fsencode(spec.venv)
    changed[b"PATH"] = path
    return b"".join([name + b"=" + value + b"\0" for name, value in changed.items()])
