"""Containers of jobs on this machine: the words that run a command inside, by apptainer.

The processes of the container are processes of the job, in its control groups and below its shim: its limits,
its stop, its devices and its adoption are those of any job. Containers of docker belong to a daemon of root
instead. Those of podman have processes and state outside the job: after a container was killed with its job,
further commands of podman fail for that user.
"""

from __future__ import annotations

import os
import shutil

import msgspec

from gflow.core.model import NO_CONTAINER, Job, Spec
from gflow.daemon.settings import Settings
from gflow.errors import Refused, UsageError

RUNTIMES = ("apptainer", "singularity")


def has_container(spec: Spec) -> bool:
    return spec.container not in ("", NO_CONTAINER)


def find_runtime(wanted: str) -> str:
    """The path of the configured program, or of the first that is installed; empty: there is none."""
    names = RUNTIMES if wanted == "auto" else (wanted,)
    return next(filter(None, map(shutil.which, names)), "")


def check_container(settings: Settings, spec: Spec) -> None:
    """Refuse an image that looks like an option, and a container here where nothing can run it."""
    if spec.container.startswith("-"):
        raise UsageError(f"--container {spec.container!a} is not an image", hint="--container image.sif")
    may_run_here = not spec.on or spec.races_here
    if not has_container(spec) or not may_run_here:
        return
    wanted = settings.config["containers.runtime"]
    if not find_runtime(wanted):
        what = "apptainer is not installed" if wanted == "auto" else f"there is no {wanted}"
        raise Refused(
            f"--container cannot be used on this machine: {what}",
            hint="containers.runtime in gflow.toml names the program or its path",
        )


def in_container(settings: Settings, job: Job) -> tuple[Job, tuple[str, ...]]:
    """The job with its command inside its container, and the words before the interpreter of its script."""
    spec = job.spec
    if not has_container(spec):
        return job, ()
    words = _words(settings, job)
    if spec.script:
        return job, words
    return msgspec.structs.replace(
        job, spec=msgspec.structs.replace(spec, command=(*words, *spec.command))
    ), ()


def _words(settings: Settings, job: Job) -> tuple[str, ...]:
    """Words that run what follows in the container. apptainer adds home, /tmp and environment by itself."""
    spec = job.spec
    # It was there at submission: if not now, the job fails by its name.
    runtime = find_runtime(settings.config["containers.runtime"]) or RUNTIMES[0]
    places = (settings.socket.parent, settings.job_files_dir, os.path.dirname(spec.script_path))
    binds = [word for folder in dict.fromkeys(map(str, places)) if folder for word in ("--bind", folder)]
    nvidia = ["--nv"] if job.gpu_ids and not job.simulated else []
    options = settings.config["containers.options"]
    return (runtime, "exec", "--pwd", spec.cwd, *nvidia, *binds, *options, spec.container)
