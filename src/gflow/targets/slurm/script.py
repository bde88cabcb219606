"""Build the sbatch script of a job. Pure: `gbatch --dry-run` prints exactly the text that sbatch gets."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from gflow.core.ids import label
from gflow.core.model import LOCAL_PREFIX, Job, Spec
from gflow.options.node_shape import parse_shape
from gflow.targets.slurm.settings import Cluster


class ScriptInputs(NamedTuple):
    """The inputs of a script besides the job itself."""

    cluster: Cluster
    # The shared folder, and the tag that identifies the submission (Slurm's job comment).
    folder: str
    tag: str
    log: str
    error_log: str
    # Environment variables about the job, without those that differ between the tasks of an array.
    variables: dict[str, str]
    # The interpreter from the `#!` line of the user's script; None: the job is a command.
    interpreter: str | None = None
    # The number of the candidate, its nodes, and its GPUs per node.
    candidate: int = 0
    nodes: int = 1
    gpus: int = 0


def shapes_of(spec: Spec) -> list[tuple[int, int]]:
    """Nodes and GPUs per node of every candidate: one, or several in a race."""
    there = [parse_shape(shape) for shape in spec.race if not shape.startswith(LOCAL_PREFIX)]
    return there or [(spec.nodes, spec.gpus)]


def script_of(job: Job, inputs: ScriptInputs) -> str:
    """The script: `#SBATCH` lines, then the shell commands."""
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in directives(job, inputs)), "", *_body(job, inputs)]
    return "\n".join(lines) + "\n"


def directives(job: Job, inputs: ScriptInputs) -> list[str]:
    """The options for sbatch, quoted as in `#SBATCH` lines."""
    spec, cluster = job.spec, inputs.cluster
    # Without CPUs or memory the cluster's defaults apply, and other jobs may share the node.
    wanted = [
        ("job-name", job.file_name),
        ("account", spec.project or cluster.account),
        ("partition", spec.partition or cluster.partition),
        ("qos", spec.qos or cluster.qos),
        ("constraint", spec.constraint or cluster.constraint),
        ("reservation", spec.reservation or cluster.reservation),
        ("nodes", inputs.nodes),
        ("ntasks-per-node", spec.ntasks_per_node or 1),
        ("gpus-per-node", f"{spec.gpu_type}:{inputs.gpus}" if spec.gpu_type and inputs.gpus else inputs.gpus),
        ("cpus-per-task", -(-(spec.cpus or 0) // (spec.ntasks_per_node or 1))),
        ("mem", f"{spec.memory_mib}M" if spec.memory_mib else ""),
        ("time", slurm_time(spec.time_limit_s)),
        ("signal", f"B:{abs(spec.warning[0])}@{spec.warning[1]}" if spec.warning[0] else ""),
        ("array", _array(job)),
        ("chdir", spec.cwd),
        # Messages of Slurm about candidates that lose a race do not belong in the job's log.
        ("output", "/dev/null" if spec.race else inputs.log),
        ("error", inputs.error_log if inputs.error_log != inputs.log and not spec.race else ""),
        ("comment", inputs.tag),
    ]
    flags = ["--exclusive"] * spec.exclusive + ["--open-mode=append", "--no-requeue", "--export=ALL"]
    extra = [_option(word) for word in (*cluster.sbatch, *spec.slurm)]
    return [f"--{name}={quote(str(value))}" for name, value in wanted if value] + flags + extra


def _array(job: Job) -> str:
    """The value of `--array`: pending tasks and cap. One task that is retried is an array of one."""
    if job.task is not None:
        return str(job.task)
    if job.progress is None:
        return ""
    cap = f"%{job.spec.max_concurrent}" if job.spec.max_concurrent else ""
    return f"{job.progress.pending}{cap}"


def _option(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={quote(value)}" if equals else name


def quote(value: str) -> str:
    """Quote a value for an `#SBATCH` line if it has any character that needs it."""
    if all(c.isalnum() or c in "-_.,:/=@%+[]&|*!~" for c in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def slurm_time(seconds: int) -> str:
    """Format seconds as `D-HH:MM:SS`; 0: empty, so that only the partition's limit applies."""
    if not seconds:
        return ""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


def run_name(job: Job) -> str:
    """The file name prefix of this attempt; for an array, a shell expression with the task index."""
    task = "_$SLURM_ARRAY_TASK_ID" if job.is_array else ""
    return f"{job.label}{task}.{job.attempt}"


def _body(job: Job, inputs: ScriptInputs) -> list[str]:
    task = "_$SLURM_ARRAY_TASK_ID" if job.is_array else ""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in inputs.variables.items()]
    exports.append(f'export GFLOW_JOB_ID="{label(job.key)}{task}"')
    if job.is_array or job.task is not None:
        exports.append('export GFLOW_ARRAY_TASK_ID="$SLURM_ARRAY_TASK_ID"')
        exports.append(f"export GFLOW_ARRAY_JOB_ID={job.number}")
    if job.is_array and not job.spec.name:
        exports.append('export GFLOW_JOB_NAME="job-$GFLOW_JOB_ID"')
    return [
        f'run={shlex.quote(inputs.folder)}/"{run_name(job)}"',
        f"bid={inputs.candidate}",
        CLAIM,
        *_redirections(job, inputs),
        *exports,
        'export GFLOW_STOP_FILE="$run.stop"',
        # The deadline is on the node's boot clock, which differs between nodes: single-node jobs only.
        *([DEADLINE.format(job.spec.time_limit_s)] if job.spec.time_limit_s and inputs.nodes == 1 else []),
        *([] if job.attempt < 2 else [f"echo 'gflow: attempt {job.attempt}'"]),
        *_command(job, inputs),
        RUN,
    ]


def _redirections(job: Job, inputs: ScriptInputs) -> list[str]:
    """Shell redirections for a race: the winner opens the job's log itself."""
    if not job.spec.race:
        return []
    separate = inputs.error_log != inputs.log
    error = f" 2>>{_to_shell(inputs.error_log)}" if separate else " 2>&1"
    return [f"exec >>{_to_shell(inputs.log)}{error}"]


def _to_shell(pattern: str) -> str:
    """Translate a Slurm file name pattern (%a, %N, %%) to a shell word."""
    parts = re.split("(%[aN%])", pattern)
    words = {"%a": '"$SLURM_ARRAY_TASK_ID"', "%N": '"$(hostname)"', "%%": "%"}
    return "".join(words.get(part) or (shlex.quote(part) if part else "") for part in parts)


def _command(job: Job, inputs: ScriptInputs) -> list[str]:
    """Shell lines that set `"$@"` to the user's command."""
    words = shlex.join(job.spec.command)
    if inputs.interpreter is None:
        return [f"set -- {words}"]
    copy = shlex.quote(f"{inputs.folder}/{job.label}.{job.attempt}.script")
    lines = [f"script={copy}"]
    if job.spec.script_path:
        lines = [CHANGED.format(shlex.quote(job.spec.script_path), copy)]
    return [*lines, f'set -- {inputs.interpreter} "$script" {words}'.rstrip()]


def interpreter_of(script: bytes) -> str:
    """The interpreter of a script: from its `#!` line, else bash."""
    first = script.partition(b"\n")[0]
    if not first.startswith(b"#!"):
        return "bash"
    program, _, argument = first[2:].strip().decode(errors="replace").partition(" ")
    return shlex.join([program, argument.strip()] if argument.strip() else [program])


# The job that renames the claim token (`.ticket`) runs. A second copy of the job finds no token and exits.
CLAIM = """id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
me=$run.claim.$bid.$id
if ! mv "$run.ticket" "$me" 2>/dev/null; then
  [ -e "$me" ] || exit 0
  # Slurm begins it a second time: whether it runs again is for gflow to say.
  [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || { echo requeued >"$run.new" && mv "$run.new" "$run.exit"; exit 0; }
fi"""
DEADLINE = """read -r up _ </proc/uptime; export GFLOW_DEADLINE=$((${{up%.*}} + {}))"""
# Run the user's script from its original path, or from the submitted copy if the original has changed.
CHANGED = """script={0}
cmp -s {1} {0} || {{
  echo 'gflow: the script has changed since it was submitted: running it as it was'
  script={1}; export PYTHONPATH="$(dirname {0})${{PYTHONPATH:+:$PYTHONPATH}}"
}}"""
# Forward signals to the job and record its exit code. If the claim file is gone, gflow has given the run up
# (its node was considered dead, and another attempt may run): the run kills itself.
RUN = """told=
pass() { told=told again=1; kill -s "$1" "$child" 2>/dev/null; }
for name in TERM INT HUP USR1 USR2; do trap "pass $name" $name; done
"$@" &
child=$!
(trap - INT HUP USR1 USR2; trap 'kill "$nap"; exit' TERM
while :; do
  sleep 5 & nap=$!; wait "$nap"
  [ -e "$me" ] || { sleep 1; [ -e "$me" ] || ! [ -d "${me%/*}" ] || kill -s KILL 0; }
done) >/dev/null 2>&1 &
watcher=$!
again=1
while [ "$again" ]; do again=; wait "$child"; code=$?; done
kill "$watcher" 2>/dev/null
[ ! -e "$me" ] || { echo "$code $told" >"$run.new" && mv "$run.new" "$run.exit"; }
exit $code"""
