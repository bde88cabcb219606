"""The keyword arguments of `gflow.submit` and `Job.redo`, for editors and type checkers.

Written by `make docs` from the table of job options; edit that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, TypedDict


class HasId(Protocol):
    """A job: `gflow.Job`."""

    id: str


Path: TypeAlias = str | os.PathLike[str]
Parent: TypeAlias = int | str | HasId
Parents: TypeAlias = Parent | Sequence[Parent]
Parameters: TypeAlias = str | Mapping[str, object]


class SubmitKeywords(TypedDict, total=False):
    """The options of `gbatch`, with `_` for `-`. None: the default."""

    gpus: int | str | None
    """Number of whole, unshared GPUs (default 0)."""
    gpu_memory: int | str | None
    """Memory needed on each GPU: 20G, 512M (a bare number is MB), or auto: taken from earlier runs."""
    max_gpu_mem: int | str | None
    """Same as gpu-memory."""
    max_gpu_memory: int | str | None
    """Same as gpu-memory."""
    gpu_memory_limit: int | str | None
    """Same as gpu-memory."""
    fit: Path | None
    """File with the prediction of gflow plan or gflow fit; --gpu-memory auto uses its value."""
    gpu_type: str | None
    """Only GPUs whose model name contains this text: A100."""
    shared: bool | None
    """Share the GPUs with other shared jobs; needs --gpu-memory."""
    cpus: int | str | None
    """CPU slots (default 1 without GPUs, 0 with)."""
    ntasks_per_node: int | str | None
    """Slurm: processes that srun starts in the job (on each node)."""
    gpus_per_task: int | str | None
    """Slurm: GPUs of each process that srun starts."""
    memory: int | str | None
    """Host memory: 16G, 1.5G, 512M (a bare number is MB)."""
    mem: int | str | None
    """Same as memory."""
    max_mem: int | str | None
    """Same as memory."""
    max_memory: int | str | None
    """Same as memory."""
    memory_limit: int | str | None
    """Same as memory."""
    time: int | str | None
    """Stop the job after this long: 2h, 1h30m, 30 (minutes), 4:00:00, 1-02:00:00; 0: no limit."""
    time_limit: int | str | None
    """Same as time."""
    timelimit: int | str | None
    """Same as time."""
    stop_if_idle: int | str | None
    """Stop the job when it has used none of its GPUs for this long: 2h or 30 (minutes)."""
    allow_unsatisfiable: bool | None
    """Queue the job even if this machine could never run it."""
    on: str | None
    """Where the job runs: local, slurm, or a target of gflow.toml (default: the setting
    default_target, else local).
    """
    overflow: str | None
    """Cluster to which the job goes if it cannot start here soon enough: slurm, or a target of
    gflow.toml.
    """
    overflow_after: int | str | None
    """Longest acceptable wait here before --overflow: 1h or 30 (minutes) (default: the target's
    overflow_after_secs, 600).
    """
    nodes: int | str | None
    """Number of cluster nodes, each with --gpus GPUs and --cpus CPUs (default 1)."""
    shape: str | None
    """Nodes and GPUs per node: n4_gpu1 is --nodes 4 --gpus 1; or the name of a shape in gflow.toml,
    [shapes.NAME].
    """
    partition: str | None
    """Slurm partition; separate several by commas."""
    qos: str | None
    """Slurm quality of service."""
    constraint: str | None
    """Features that the Slurm nodes must have."""
    reservation: str | None
    """Slurm reservation."""
    exclusive: bool | None
    """Use whole cluster nodes, not shared with other jobs."""
    container: str | None
    """Image in which the command runs, by apptainer: image.sif, a folder, docker://…; none."""
    race: str | Sequence[str] | None
    """Shapes to try at once, on Slurm or here; the job runs in the first that can start:
    local:n1_gpu2,n4_gpu1.
    """
    effective_batch: int | str | None
    """Samples per optimizer step over all GPUs, in any shape of the job (GFLOW_EFFECTIVE_BATCH)."""
    slurm: str | Sequence[str] | None
    """Pass an option that gflow does not have to sbatch: --slurm=--licenses=matlab; may be repeated."""
    sync: Path | None
    """Folder whose files the cluster gets as they are now; the job runs in that copy (default: the
    target's sync).
    """
    no_sync: bool | None
    """Send no files to the cluster."""
    sync_size: int | str | None
    """Most that one submission may send: 2G (default: the target's sync_limit, 200M)."""
    outputs: str | Sequence[str] | None
    """Files to fetch from the cluster when the job ends: 'runs/**'; separate several by commas
    (default: the target's outputs).
    """
    name: str | None
    """Name of the job (default: its script or program); in a sweep a template such as 'run_{lr}'."""
    job_name: str | None
    """Same as name."""
    name_template: str | None
    """Same as name."""
    project: str | None
    """Project the job belongs to."""
    comment: str | None
    """Comment, shown by gjob show."""
    depends_on: Parents | None
    """Start after this job has succeeded: an id, g116 (all jobs of a group), @ (my latest), @~N (N
    before it); separate several by commas.
    """
    depends_on_all: Parents | None
    """Same as depends-on."""
    depends_on_any: Parents | None
    """Start after one of these jobs has succeeded."""
    depends_on_end: Parents | None
    """Start after these jobs have ended, in any way (afterany)."""
    depends_on_failure: Parents | None
    """Start after these jobs have failed: ended in any way but success (afternotok)."""
    depends_on_start: Parents | None
    """Start after these jobs have started or ended (after)."""
    singleton: bool | None
    """Start after your earlier jobs of the same name have ended."""
    no_auto_cancel: bool | None
    """Keep the job waiting when a job it depends on fails."""
    begin: str | None
    """Earliest start: 20:00, 2026-12-24T08:00, now+2h; 10 is in ten minutes."""
    hold: bool | None
    """Submit the job on hold; gjob release releases it."""
    priority: int | str | None
    """0 to 255, higher starts sooner (default 10)."""
    preemptible: bool | None
    """Allow the job to be stopped and requeued when a job of higher priority, or one that is not
    preemptible, needs its GPUs.
    """
    array: int | str | None
    """Run the job as an array of tasks: 1-10, 0-90:10, 1,3,5-7; append %4 to run at most 4 at once."""
    param: Parameters | None
    """Sweep parameter: lr=0.1,0.01 or seed=1:5 or x=0:1:0.25; may be repeated; {lr} in the command is
    replaced by the value.
    """
    max_concurrent: int | str | None
    """Run at most N of these jobs (or tasks) at once."""
    stop_when: str | Sequence[str] | None
    """Stop the job early by a metric that it reports: 'loss > 2 at step 500', 'loss is nan', 'loss
    above median at step 500' (of the group); may be repeated.
    """
    max_retries: int | str | None
    """Retry a failed job up to N times."""
    retry_on: str | Sequence[str] | None
    """Which failures are retried (with --max-retries): oom, timeout, exit:75, signal:9, lost, start,
    failed, any (default failed).
    """
    retry_delay: int | str | None
    """Delay before the first retry: 30 (seconds) or 5m, doubled each time up to an hour (default 10)."""
    requeue: bool | None
    """Requeue the job when it reaches its time limit, the machine restarts, or it exits with code 75."""
    resume_args: str | None
    """Arguments added to the command from the second attempt on: '--ckpt_path {latest}'; {latest:DIR}
    looks in DIR.
    """
    signal: str | None
    """Send a signal before the time limit: USR1@60 sends USR1 60 seconds before it, USR1@5m 5 minutes;
    the programs of the job get it, its batch shell does not; B:USR1@60: only that shell.
    """
    grace: int | str | None
    """Time between TERM and KILL when the job is stopped: 90 (seconds) or 5m (default 30)."""
    venv: Path | None
    """Activate this Python virtual environment."""
    conda_env: Path | None
    """Activate this conda environment (name or directory)."""
    output: Path | None
    """File for standard output: %j job, %x name, %A array, %a task, %u user, %h host."""
    error: Path | None
    """File for standard error (default: the same as --output)."""
    pty: bool | None
    """Run the job in a terminal, for grun and gjob attach."""
    notify_email: str | Sequence[str] | None
    """Email address to notify about the job; may be repeated (needs notifications.emails in
    gflow.toml).
    """
    notify_on: str | Sequence[str] | None
    """Events to notify about: job_started, job_failed, … (default: job_completed, _failed, _timeout,
    _cancelled); of a sweep or array: group_end, group_first_failure (default: these two).
    """
    chdir: Path | None
    """Run in this directory (default: the current one)."""
    export: str | None
    """Environment to pass to the job: ALL (default), NONE, or A,B=c."""
    config: Path | None
    """Configuration file of the job (YAML, TOML, JSON), exported as GFLOW_CONFIG; options are read
    from its key gflow.
    """
    param_file: Path | None
    """Sweep from a CSV file: a header, then one job per row."""


class RedoKeywords(TypedDict, total=False):
    """The options of `gjob redo`, with `_` for `-`. None resets an option to its default."""

    gpus: int | str | None
    """Number of whole, unshared GPUs (default 0)."""
    gpu_memory: int | str | None
    """Memory needed on each GPU: 20G, 512M (a bare number is MB), or auto: taken from earlier runs."""
    max_gpu_mem: int | str | None
    """Same as gpu-memory."""
    max_gpu_memory: int | str | None
    """Same as gpu-memory."""
    gpu_memory_limit: int | str | None
    """Same as gpu-memory."""
    fit: Path | None
    """File with the prediction of gflow plan or gflow fit; --gpu-memory auto uses its value."""
    gpu_type: str | None
    """Only GPUs whose model name contains this text: A100."""
    shared: bool | None
    """Share the GPUs with other shared jobs; needs --gpu-memory."""
    cpus: int | str | None
    """CPU slots (default 1 without GPUs, 0 with)."""
    cpus_per_task: int | str | None
    """Same as cpus."""
    ntasks_per_node: int | str | None
    """Slurm: processes that srun starts in the job (on each node)."""
    gpus_per_task: int | str | None
    """Slurm: GPUs of each process that srun starts."""
    memory: int | str | None
    """Host memory: 16G, 1.5G, 512M (a bare number is MB)."""
    mem: int | str | None
    """Same as memory."""
    max_mem: int | str | None
    """Same as memory."""
    max_memory: int | str | None
    """Same as memory."""
    memory_limit: int | str | None
    """Same as memory."""
    time: int | str | None
    """New time limit: 4h or 30 (minutes); +2h or +30 extends the present one."""
    time_limit: int | str | None
    """Same as time."""
    timelimit: int | str | None
    """Same as time."""
    stop_if_idle: int | str | None
    """Stop the job when it has used none of its GPUs for this long: 2h or 30 (minutes)."""
    allow_unsatisfiable: bool | None
    """Queue the job even if this machine could never run it."""
    on: str | None
    """Where the job runs: local, slurm, or a target of gflow.toml (default: the setting
    default_target, else local).
    """
    overflow: str | None
    """Cluster to which the job goes if it cannot start here soon enough: slurm, or a target of
    gflow.toml.
    """
    overflow_after: int | str | None
    """Longest acceptable wait here before --overflow: 1h or 30 (minutes) (default: the target's
    overflow_after_secs, 600).
    """
    nodes: int | str | None
    """Number of cluster nodes, each with --gpus GPUs and --cpus CPUs (default 1)."""
    shape: str | None
    """Nodes and GPUs per node: n4_gpu1 is --nodes 4 --gpus 1; or the name of a shape in gflow.toml,
    [shapes.NAME].
    """
    partition: str | None
    """Slurm partition; separate several by commas."""
    qos: str | None
    """Slurm quality of service."""
    constraint: str | None
    """Features that the Slurm nodes must have."""
    reservation: str | None
    """Slurm reservation."""
    exclusive: bool | None
    """Use whole cluster nodes, not shared with other jobs."""
    container: str | None
    """Image in which the command runs, by apptainer: image.sif, a folder, docker://…; none."""
    race: str | Sequence[str] | None
    """Shapes to try at once, on Slurm or here; the job runs in the first that can start:
    local:n1_gpu2,n4_gpu1.
    """
    effective_batch: int | str | None
    """Samples per optimizer step over all GPUs, in any shape of the job (GFLOW_EFFECTIVE_BATCH)."""
    slurm: str | Sequence[str] | None
    """Pass an option that gflow does not have to sbatch: --slurm=--licenses=matlab; may be repeated."""
    sync: Path | None
    """Folder whose files the cluster gets as they are now; the job runs in that copy (default: the
    target's sync).
    """
    no_sync: bool | None
    """Send no files to the cluster."""
    sync_size: int | str | None
    """Most that one submission may send: 2G (default: the target's sync_limit, 200M)."""
    outputs: str | Sequence[str] | None
    """Files to fetch from the cluster when the job ends: 'runs/**'; separate several by commas
    (default: the target's outputs).
    """
    name: str | None
    """Name of the job (default: its script or program); in a sweep a template such as 'run_{lr}'."""
    job_name: str | None
    """Same as name."""
    name_template: str | None
    """Same as name."""
    comment: str | None
    """Comment, shown by gjob show."""
    depends_on: Parents | None
    """Start after this job has succeeded: an id, g116 (all jobs of a group), @ (my latest), @~N (N
    before it); separate several by commas.
    """
    depends_on_all: Parents | None
    """Same as depends-on."""
    depends_on_any: Parents | None
    """Start after one of these jobs has succeeded."""
    depends_on_end: Parents | None
    """Start after these jobs have ended, in any way (afterany)."""
    depends_on_failure: Parents | None
    """Start after these jobs have failed: ended in any way but success (afternotok)."""
    depends_on_start: Parents | None
    """Start after these jobs have started or ended (after)."""
    singleton: bool | None
    """Start after your earlier jobs of the same name have ended."""
    no_auto_cancel: bool | None
    """Keep the job waiting when a job it depends on fails."""
    no_auto_cancel_on_dep_failure: bool | None
    """Same as no-auto-cancel."""
    begin: str | None
    """Earliest start: 20:00, 2026-12-24T08:00, now+2h; 10 is in ten minutes."""
    hold: bool | None
    """Submit the job on hold; gjob release releases it."""
    priority: int | str | None
    """0 to 255, higher starts sooner (default 10)."""
    preemptible: bool | None
    """Allow the job to be stopped and requeued when a job of higher priority, or one that is not
    preemptible, needs its GPUs.
    """
    param: Parameters | None
    """New value for a sweep parameter: lr=0.1; may be repeated."""
    max_concurrent: int | str | None
    """Run at most N of these jobs (or tasks) at once."""
    stop_when: str | Sequence[str] | None
    """Stop the job early by a metric that it reports: 'loss > 2 at step 500', 'loss is nan', 'loss
    above median at step 500' (of the group); may be repeated.
    """
    max_retries: int | str | None
    """Retry a failed job up to N times."""
    retry_on: str | Sequence[str] | None
    """Which failures are retried (with --max-retries): oom, timeout, exit:75, signal:9, lost, start,
    failed, any (default failed).
    """
    retry_delay: int | str | None
    """Delay before the first retry: 30 (seconds) or 5m, doubled each time up to an hour (default 10)."""
    requeue: bool | None
    """Requeue the job when it reaches its time limit, the machine restarts, or it exits with code 75."""
    resume_args: str | None
    """Arguments added to the command from the second attempt on: '--ckpt_path {latest}'; {latest:DIR}
    looks in DIR.
    """
    signal: str | None
    """Send a signal before the time limit: USR1@60 sends USR1 60 seconds before it, USR1@5m 5 minutes;
    the programs of the job get it, its batch shell does not; B:USR1@60: only that shell.
    """
    grace: int | str | None
    """Time between TERM and KILL when the job is stopped: 90 (seconds) or 5m (default 30)."""
    venv: Path | None
    """Activate this Python virtual environment."""
    conda_env: Path | None
    """Activate this conda environment (name or directory)."""
    output: Path | None
    """File for standard output: %j job, %x name, %A array, %a task, %u user, %h host."""
    error: Path | None
    """File for standard error (default: the same as --output)."""
    pty: bool | None
    """Run the job in a terminal, for grun and gjob attach."""
    notify_email: str | Sequence[str] | None
    """Email address to notify about the job; may be repeated (needs notifications.emails in
    gflow.toml).
    """
    notify_on: str | Sequence[str] | None
    """Events to notify about: job_started, job_failed, … (default: job_completed, _failed, _timeout,
    _cancelled); of a sweep or array: group_end, group_first_failure (default: these two).
    """
