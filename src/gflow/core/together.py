"""What of a spec must go together: what no single option can see. The same for new jobs and changed ones."""

from __future__ import annotations

from gflow.core.model import Spec
from gflow.errors import UsageError


def check_together(spec: Spec) -> None:
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
    if spec.retry_on and not spec.max_retries:
        raise UsageError("--retry-on needs --max-retries", hint="gbatch --max-retries 3 --retry-on oom …")
