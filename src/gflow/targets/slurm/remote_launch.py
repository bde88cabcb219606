"""A launch as the cluster gets it: script, environment and paths for sbatch, and the outputs to fetch."""

from __future__ import annotations

import os

import msgspec

from gflow.targets.port import Launch
from gflow.targets.slurm.candidate import Candidate
from gflow.targets.slurm.files.result_fetch import FetchOrder, fetch_order
from gflow.targets.slurm.files.snapshot_transfer import in_snapshot
from gflow.targets.slurm.script import ScriptInputs, interpreter_of, script_of
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.shared_folder import SharedFolder
from gflow.targets.slurm.ssh.remote_folder import RemoteFolder

# Variables that the script sets itself, as they differ between the tasks of an array.
PER_TASK = frozenset({"GFLOW_JOB_ID", "GFLOW_ARRAY_JOB_ID", "GFLOW_ARRAY_TASK_ID"})


def build_script(launch: Launch, candidate: Candidate, cluster: Cluster, folder: str, tag: str) -> str:
    """The sbatch script of one candidate."""
    variables = {
        name: value
        for name, value in variables_of(launch.extra).items()
        if name.startswith("GFLOW_") and name not in PER_TASK
    }
    variables["GFLOW_NODES"], variables["GFLOW_GPUS"] = str(candidate.nodes), str(candidate.gpus)
    inputs = ScriptInputs(
        cluster=cluster,
        folder=folder,
        tag=tag,
        log=launch.log,
        error_log=launch.error_log,
        variables=variables,
        interpreter=None if launch.script is None else interpreter_of(launch.script),
        candidate=candidate.number,
        nodes=candidate.nodes,
        gpus=candidate.gpus,
        tasks=candidate.tasks,
        offset=candidate.offset,
    )
    return script_of(launch.job, inputs)


def variables_of(block: bytes) -> dict[str, str]:
    """Parse a NUL-separated block of `NAME=value`; the last value of a name counts."""
    found = {}
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if name and equals:
            found[os.fsdecode(name)] = os.fsdecode(value)
    return found


def launch_there(launch: Launch, folder: SharedFolder | RemoteFolder) -> Launch:
    """The launch with the paths as they are on the cluster. A job whose files are sent runs in their copy."""
    launch = in_snapshot(launch, f"{folder.folder}/snapshots", has_logs=folder.is_remote)
    if not folder.is_remote:
        return launch
    spec = launch.job.spec
    cwd = folder.expand(spec.cwd)
    script_path = spec.script_path if spec.sync else ""
    spec = msgspec.structs.replace(spec, cwd=cwd, script_path=script_path)
    job = msgspec.structs.replace(launch.job, spec=spec)
    log, error_log = (os.path.join(cwd, folder.expand(path)) for path in (launch.log, launch.error_log))
    return launch._replace(job=job, log=log, error_log=error_log)


def outputs_of(launch: Launch, there: Launch) -> FetchOrder | None:
    """What is fetched when a job ends. `there`: the launch as it is on the cluster; None: nothing."""
    spec = launch.job.spec
    if not spec.outputs or there.job.spec.cwd == launch.here:
        return None
    return fetch_order(launch.job, there.job.spec.cwd, launch.here, spec.outputs)


def environment_of(launch: Launch) -> dict[str, str]:
    """The environment for sbatch, which the job inherits: the submitter's variables and gflow's."""
    return {"PYTHONUNBUFFERED": "1"} | variables_of(launch.environ + b"\0" + launch.extra)
