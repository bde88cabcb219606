"""Rules between options: which require or exclude each other. Applied to new and to updated specs."""

from __future__ import annotations

import shlex

from gflow.core.model import Spec
from gflow.errors import UsageError


def check_option_rules(spec: Spec) -> None:
    """Raise UsageError if the options of a spec contradict each other."""
    if spec.shared and not (spec.gpu_memory_mib and spec.gpus):
        raise UsageError(
            "--shared needs --gpus and --gpu-memory", hint="gbatch --gpus 1 --shared --gpu-memory 20G …"
        )
    if spec.preemptible and (not spec.gpus or spec.shared):
        raise UsageError(
            "--preemptible needs --gpus, for the job alone", hint="it is about GPUs that others may need"
        )
    if spec.stop_if_idle_s and not spec.gpus:
        raise UsageError(
            "--stop-if-idle needs --gpus", hint="it is about GPUs that a job has and does not use"
        )
    if spec.predicted_mib and not spec.gpus:
        raise UsageError("--fit needs --gpus", hint="it is about the memory of a job's GPUs")
    if spec.resume_args:
        _check_resuming(spec)
    if spec.races_here and spec.array:
        raise UsageError("a race with this machine is for single jobs, not for arrays")
    if spec.overflow or spec.overflow_after_s is not None:
        _check_overflow(spec)
    if spec.retry_on and not spec.max_retries:
        raise UsageError("--retry-on needs --max-retries", hint="gbatch --max-retries 3 --retry-on oom …")


def _check_overflow(spec: Spec) -> None:
    if not spec.overflow:
        raise UsageError("--overflow-after needs --overflow", hint="gbatch --overflow slurm …")
    if spec.on:
        raise UsageError(
            f"--on {spec.on} says where it runs: --overflow is for jobs that begin to wait here",
            hint="gbatch --on local --overflow slurm …",
        )
    if spec.array:
        raise UsageError(
            "--overflow moves single jobs, not arrays", hint="--param task=1:100 makes jobs of their own"
        )
    if spec.nodes > 1 or spec.race:
        raise UsageError("this machine is one node: --overflow goes with neither --nodes nor --race")


def _check_resuming(spec: Spec) -> None:
    if not spec.requeue and not spec.max_retries:
        raise UsageError(
            "--resume-args needs --requeue or --max-retries", hint="they are for further attempts of the job"
        )
    try:
        shlex.split(spec.resume_args)
    except ValueError:
        raise UsageError(f"--resume-args {spec.resume_args!a}: a quote is not closed") from None
    if spec.script:
        raise UsageError(
            "--resume-args are arguments of a program, not of a script",
            hint="gbatch --resume-args '--ckpt_path {latest}' python train.py",
        )
