"""The variables that gflow adds to the submitted environment of a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from gflow import targets
from gflow.core.model import Job, Spec
from gflow.core.sweep_template import variable
from gflow.core.task_set import Span, parse_tasks
from gflow.daemon.loop import timers

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
# Folder of the stand-ins for commands of Slurm.
STAND_INS = os.path.join(os.path.dirname(targets.__file__), "local", "bin")
SBATCH = b"#SBATCH"


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
    if is_slurm_script(script):
        variables |= slurm_variables(job)
    return variables


def slurm_variables(job: Job) -> dict[str, str]:
    """Variables of Slurm that batch scripts use; without those that have no value for this job."""
    found = {name: of(job) for name, of in SLURM_VARIABLES.items()}
    if job.task is not None:
        found |= {name: of(job) for name, of in SLURM_ARRAY_VARIABLES.items()}
    return {f"SLURM_{name}": str(value) for name, value in found.items() if value not in (None, "", 0)}


def _job_id(job: Job) -> int:
    """A number of its own for each task, as in Slurm: scripts calculate ports and seeds from it."""
    return job.number if job.task is None else job.key


def _host(job: Job) -> str:
    return os.uname().nodename


def _cpus(job: Job) -> int:
    """CPU slots of the job; all CPUs if it asked for none, because then none are reserved or enforced."""
    return job.spec.slots or len(os.sched_getaffinity(0))


def _cpus_per_task(job: Job) -> int:
    return (job.spec.cpus or 0) // (job.spec.ntasks_per_node or 1)


def _spans(job: Job) -> tuple[Span, ...]:
    return parse_tasks(job.spec.array).spans


# What SLURM_* variables say about a job on this machine. None, an empty text and 0 are left out: as in Slurm,
# NTASKS and CPUS_PER_TASK exist only if they were asked for, because frameworks conclude from NTASKS that
# srun started them. Numbers that are 0 in Slurm too are text.
SLURM_VARIABLES: dict[str, Callable[[Job], object]] = {
    "JOB_ID": _job_id,
    "JOBID": _job_id,
    "JOB_NAME": lambda job: job.file_name,
    "JOB_USER": lambda job: job.user,
    "JOB_UID": lambda job: str(job.uid),
    "JOB_ACCOUNT": lambda job: job.spec.project,
    "JOB_PARTITION": lambda job: job.spec.partition,
    "JOB_QOS": lambda job: job.spec.qos,
    "JOB_NODELIST": _host,
    "NODELIST": _host,
    "JOB_NUM_NODES": lambda job: 1,
    "NNODES": lambda job: 1,
    "NODEID": lambda job: "0",
    "PROCID": lambda job: "0",
    "LOCALID": lambda job: "0",
    "NTASKS": lambda job: job.spec.ntasks_per_node,
    "NPROCS": lambda job: job.spec.ntasks_per_node,
    "NTASKS_PER_NODE": lambda job: job.spec.ntasks_per_node,
    "TASKS_PER_NODE": lambda job: job.spec.ntasks_per_node or 1,
    "CPUS_PER_TASK": _cpus_per_task,
    "CPUS_ON_NODE": _cpus,
    "JOB_CPUS_PER_NODE": _cpus,
    "GPUS": lambda job: job.spec.gpus,
    "GPUS_ON_NODE": lambda job: job.spec.gpus,
    "GPUS_PER_TASK": lambda job: job.spec.gpus_per_task,
    "JOB_GPUS": lambda job: ",".join(map(str, job.gpu_ids)),
    "MEM_PER_NODE": lambda job: job.spec.memory_mib,
    "SUBMIT_DIR": lambda job: job.spec.cwd,
    "SUBMIT_HOST": _host,
    "RESTART_COUNT": lambda job: job.attempt - 1,
}
SLURM_ARRAY_VARIABLES: dict[str, Callable[[Job], object]] = {
    "ARRAY_JOB_ID": lambda job: job.number,
    "ARRAY_TASK_ID": lambda job: str(job.task),
    "ARRAY_TASK_COUNT": lambda job: len(parse_tasks(job.spec.array)),
    "ARRAY_TASK_MIN": lambda job: str(_spans(job)[0].first),
    "ARRAY_TASK_MAX": lambda job: str(max(span.last for span in _spans(job))),
    "ARRAY_TASK_STEP": lambda job: _spans(job)[0].step,
}


def block(variables: dict[str, str]) -> bytes:
    """Encode variables as NAME=VALUE entries that end with NUL, as in /proc/PID/environ."""
    return os.fsencode("".join([f"{name}={value}\0" for name, value in variables.items()]))


def named_variables(environ: bytes) -> bytes:
    """The variables that `gbatch --export` named: no others are sent to another site."""
    entries = dict(entry.partition(b"=")[::2] for entry in environ.split(b"\0") if b"=" in entry)
    names = entries.get(EXPORT, b"").split(b",")
    return b"".join([name + b"=" + entries[name] + b"\0" for name in names if name in entries])


# The names that the user gave to --export; set by the client.
EXPORT = b"GFLOW_EXPORT"


def is_slurm_script(script: bytes | None) -> bool:
    return script is not None and SBATCH in script


def stand_in_variables(script: bytes | None) -> dict[str, str]:
    """Variables with which stand-ins run, and are found by login shells, which set PATH themselves."""
    functions = {
        f"BASH_FUNC_{name}%%": f'() {{ "{STAND_INS}/{name}" "$@"; }}' for name in ("srun", "scontrol")
    }
    return {"GFLOW_PYTHON": sys.executable} | (functions if is_slurm_script(script) else {})


def path_additions(spec: Spec, script: bytes | None) -> tuple[bytes, bytes]:
    """What PATH begins and ends with: the stand-ins, first for Slurm scripts, last for jobs that name srun.

    A Slurm script that runs here means this machine, even where a cluster is in reach. Other jobs may mean a
    real srun.
    """
    folder = os.fsencode(STAND_INS)
    if is_slurm_script(script):
        return folder + b":", b""
    text = os.fsencode(" ".join(spec.command)) if script is None else script
    return b"", b":" + folder if b"srun" in text else b""


def activation_variables(spec: Spec, environ: bytes, additions: tuple[bytes, bytes] = (b"", b"")) -> bytes:
    """The variables that activate the job's venv and conda environment. No activate script is sourced.

    `additions`: what PATH begins and ends with besides.
    """
    if not spec.venv and not spec.conda_env and not any(additions):
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
    changed[b"PATH"] = additions[0] + path + additions[1]
    return b"".join([name + b"=" + value + b"\0" for name, value in changed.items()])
