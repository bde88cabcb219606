"""Build the sbatch script of a job. Pure: `gbatch --dry-run` prints exactly the text that sbatch gets."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from gflow.core.ids import label
from gflow.core.model import LOCAL_PREFIX, NO_CONTAINER, Job, Spec
from gflow.core.task_set import TaskSet, parse_tasks
from gflow.options.job_options import SIGNALS
from gflow.options.node_shape import parse_shape
from gflow.options.sbatch_words import meanings_of, name_of, without_replaced
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
    # The tasks of this part of an array; None: all. Slurm's index of a task is less by `offset`.
    tasks: TaskSet | None = None
    offset: int = 0


def shapes_of(spec: Spec) -> list[tuple[int, int]]:
    """Nodes and GPUs per node of every candidate: one, or several in a race."""
    there = [parse_shape(shape) for shape in spec.race if not shape.startswith(LOCAL_PREFIX)]
    return there or [(spec.nodes, spec.gpus)]


def script_of(job: Job, inputs: ScriptInputs) -> str:
    """The script: `#SBATCH` lines, then the shell commands."""
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in directives(job, inputs)), "", *_body(job, inputs)]
    return "\n".join(lines) + "\n"


def directives(job: Job, inputs: ScriptInputs) -> list[str]:
    """The options for sbatch, quoted as in `#SBATCH` lines. Words of the user take the place of gflow's."""
    spec, cluster, words = job.spec, inputs.cluster, words_of(job.spec, inputs)
    meant = meanings_of(words) | set(map(name_of, words))
    has_error_log = inputs.error_log != inputs.log
    # Without CPUs or memory the cluster's defaults apply, and other jobs may share the node.
    wanted = [
        ("job-name", "", job.file_name),
        ("account", "", spec.project or cluster.account),
        ("partition", "", spec.partition or cluster.partition),
        ("qos", "", spec.qos or cluster.qos),
        ("constraint", "", spec.constraint or cluster.constraint),
        ("reservation", "", spec.reservation or cluster.reservation),
        # A job that is described in Slurm's words has Slurm's default.
        ("nodes", "", inputs.nodes if inputs.nodes > 1 or (not words and (inputs.gpus or spec.cpus)) else 0),
        ("ntasks-per-node", "", spec.ntasks_per_node),
        ("gpus-per-node", "gpus", _gpus_per_node(spec, inputs.gpus)),
        ("cpus-per-task", "cpus", _cpus_per_task(spec, meant)),
        ("mem", "memory", f"{spec.memory_mib}M" if spec.memory_mib else ""),
        ("time", "", slurm_time(spec.time_limit_s)),
        ("signal", "", f"B:{abs(spec.warning[0])}@{spec.warning[1]}" if spec.warning[0] else ""),
        ("array", "", _array(job, inputs)),
        ("chdir", "", spec.cwd),
        ("output", "", "/dev/null" if _opens_log(spec, inputs) else inputs.log),
        ("error", "", inputs.error_log if has_error_log and not _opens_log(spec, inputs) else ""),
        ("comment", "", inputs.tag),
    ]  # fmt: skip
    found = [
        f"--{name}={quote(str(value))}"
        for name, ours, value in wanted
        if value and not meant & {name, ours or name}
    ]
    flags = ["--exclusive"] * (spec.exclusive and "exclusive" not in meant)
    flags += ["--open-mode=append", "--no-requeue", "--export=ALL"]
    return found + flags + [_option(word) for word in (*cluster.sbatch, *words)]


# Options of gflow on which the nodes of a job depend.
RESOURCES = frozenset({"gpus", "nodes", "ntasks-per-node", "cpus", "memory"})


def words_of(spec: Spec, inputs: ScriptInputs) -> tuple[str, ...]:
    """The words for sbatch. A candidate of another shape than the job's replaces nodes and GPUs."""
    if (inputs.nodes, inputs.gpus) == (spec.nodes, spec.gpus) and not spec.race:
        return spec.slurm
    return without_replaced(spec.slurm, ("nodes", "gpus"))


def _gpus_per_node(spec: Spec, gpus: int) -> str:
    return f"{spec.gpu_type}:{gpus}" if spec.gpu_type and gpus else str(gpus or "")


def _cpus_per_task(spec: Spec, meant: set[str]) -> int:
    """CPUs of each task; 0: Slurm's default, one, for tasks that are given in Slurm's words."""
    each = -(-(spec.cpus or 0) // (spec.ntasks_per_node or 1))
    return 0 if each == 1 and "ntasks-per-node" in meant else each


def _opens_log(spec: Spec, inputs: ScriptInputs) -> bool:
    """Whether the script opens the log, and not Slurm.

    Messages about candidates that lose a race do not belong in it; and Slurm names it by its own index.
    """
    return bool(spec.race or inputs.offset)


def _array(job: Job, inputs: ScriptInputs) -> str:
    """The value of `--array`: pending tasks and cap. One task that is retried is an array of one."""
    if job.task is not None:
        return str(job.task - inputs.offset)
    if job.progress is None:
        return ""
    cap = f"%{job.spec.max_concurrent}" if job.spec.max_concurrent else ""
    tasks = job.progress.pending if inputs.tasks is None else inputs.tasks
    return f"{tasks.shifted(-inputs.offset) if inputs.offset else tasks}{cap}"


def _array_variables(job: Job, inputs: ScriptInputs) -> list[str]:
    """Shell lines that give a task of a part the variables of the whole array."""
    lines = []
    if inputs.offset:
        lines.append(f"export SLURM_ARRAY_TASK_ID=$((SLURM_ARRAY_TASK_ID + {inputs.offset}))")
    if inputs.tasks is not None:
        tasks = parse_tasks(job.spec.array)
        lines.append(
            f"export SLURM_ARRAY_TASK_COUNT={len(tasks)} SLURM_ARRAY_TASK_MIN={tasks.first}"
            f" SLURM_ARRAY_TASK_MAX={tasks.last}"
        )
    return lines


def _option(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={quote(value)}" if equals else name


def quote(value: str) -> str:
    """Quote a value for an `#SBATCH` line if it has any character that needs it.

    ValueError: it has several lines, and the shell would execute the second one.
    """
    if "\n" in value:
        raise ValueError(f"{value!a:.200} has a line break, which no option of sbatch can have")
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
    attempt = inputs.variables.get("GFLOW_ATTEMPT", str(job.attempt))
    return [
        SLURM_ID,
        *_array_variables(job, inputs),
        f'run={shlex.quote(inputs.folder)}/"{run_name(job)}"',
        f"bid={inputs.candidate}",
        CLAIM,
        *_redirections(job, inputs),
        *exports,
        *([ALLOCATED] if meanings_of(words_of(job.spec, inputs)) & RESOURCES else []),
        'export GFLOW_STOP_FILE="$run.stop" GFLOW_PROGRESS="$run.progress"',
        *_time_limit(job.spec),
        *_setup(inputs.cluster),
        *([] if attempt in ("0", "1") else [f"echo 'gflow: attempt {attempt}'"]),
        *_command(job, inputs),
        *_container(job.spec, inputs),
        *([NOT_LOADED] if inputs.cluster.modules else []),
        RUN.format(traps=_traps(job.spec)),
    ]


def _traps(spec: Spec) -> str:
    """Traps that forward signals to the command. That of --signal goes to its programs, not to a shell.

    Slurm itself sends the signal that `#SBATCH --signal` names to the job's steps.
    """
    number = 0 if "signal" in map(name_of, spec.slurm) else spec.warning[0]
    names = {SIGNAL_NAMES.get(number, str(number)): "warn"} if number > 0 else {}
    caught = dict.fromkeys((*PASSED, *names))
    lines = [f"trap '{names.get(name, 'pass')} {name}' {name}" for name in caught]
    return "\n".join([WARN, *lines] if names else lines)


def _time_limit(spec: Spec) -> list[str]:
    """Shell lines that export when the time limit is reached. Of a job that is requeued Slurm is asked."""
    if not spec.time_limit_s and not spec.requeue:
        return [NO_TIME_LIMIT]
    ask = ASK_SLURM if spec.requeue else ":"
    return [NO_TIME_LIMIT, TIME_LIMIT.format(limit=spec.time_limit_s, ask=ask)]


def _redirections(job: Job, inputs: ScriptInputs) -> list[str]:
    """Shell redirections to the log, if the script opens it."""
    if not _opens_log(job.spec, inputs):
        return []
    separate = inputs.error_log != inputs.log
    error = f" 2>>{_to_shell(inputs.error_log)}" if separate else " 2>&1"
    return [f"exec >>{_to_shell(inputs.log)}{error}"]


def _setup(cluster: Cluster) -> list[str]:
    """Shell lines of the target: its modules, then its own lines."""
    if not cluster.modules:
        return list(cluster.setup)
    message = f"gflow: these modules cannot be loaded: {' '.join(cluster.modules)}"
    return [LOAD.format(shlex.join(cluster.modules), shlex.quote(message)), *cluster.setup]


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


def _container(spec: Spec, inputs: ScriptInputs) -> list[str]:
    """Shell lines that put the command into the container of the job, or of its target.

    It sees the working folder, the shared folder and, if the job has GPUs, these.
    """
    image = spec.container or inputs.cluster.container
    if not image or image == NO_CONTAINER:
        return []
    folder = inputs.folder
    options = [*(["--nv"] if inputs.gpus else []), "--bind", folder, *inputs.cluster.container_options]
    return [CONTAINER.format(shlex.join(options), shlex.quote(image))]


def interpreter_of(script: bytes) -> str:
    """The interpreter of a script: from its `#!` line, else bash."""
    first = script.partition(b"\n")[0]
    if not first.startswith(b"#!"):
        return "bash"
    program, _, argument = first[2:].strip().decode(errors="replace").partition(" ")
    return shlex.join([program, argument.strip()] if argument.strip() else [program])


SLURM_ID = "id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
# The job that renames the claim token (`.ticket`) runs. A second copy of the job finds no token and exits.
CLAIM = """me=$run.claim.$bid.$id
if mv "$run.ticket" "$me" 2>/dev/null; then
  # A request that came late over a broken connection may have made a second token.
  for other in "$run".claim.*; do [ "$other" = "$me" ] || exit 0; done
else
  [ -e "$me" ] || exit 0
  # Slurm begins it a second time: whether it runs again is for gflow to say.
  [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || { echo requeued >"$run.new" && mv "$run.new" "$run.exit"; exit 0; }
fi"""
# Slurm decides how many nodes and GPUs a job has that is described in its words.
ALLOCATED = """export GFLOW_NODES=${SLURM_JOB_NUM_NODES:-$GFLOW_NODES}
export GFLOW_GPUS=${SLURM_GPUS_ON_NODE:-$GFLOW_GPUS}"""
# GFLOW_END_TIME is in seconds since 1970. GFLOW_DEADLINE is on the boot clock, which differs between nodes:
# `gflow launch` sets it on each of several nodes. A limit that gflow does not know is the partition's default
# or that of a variable of sbatch; older releases of Slurm tell it only on request.
NO_TIME_LIMIT = "unset GFLOW_DEADLINE GFLOW_END_TIME"  # of a job that submitted this one
TIME_LIMIT = """if [ "$SLURM_JOB_END_TIME" ]; then GFLOW_END_TIME=$SLURM_JOB_END_TIME
elif [ {limit} = 0 ] || [ "$SBATCH_TIMELIMIT" ]; then {ask}
else GFLOW_END_TIME=$(($(date +%s) + {limit})); fi
if [ "$GFLOW_END_TIME" ]; then
  export GFLOW_END_TIME
  read -r up _ </proc/uptime
  [ "$SLURM_JOB_NUM_NODES" != 1 ] || export GFLOW_DEADLINE=$((${{up%.*}} + GFLOW_END_TIME - $(date +%s)))
fi"""
ASK_SLURM = """GFLOW_END_TIME=$(date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %e)" +%s 2>/dev/null)"""
# A shell that is not a login shell may not know `module`.
LOAD = """command -v module >/dev/null || for file in /etc/profile.d/lmod.sh /etc/profile.d/modules.sh \\
  /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash; do [ ! -e "$file" ] || . "$file"; done
module load {0} && unset not_loaded || not_loaded={1}"""
NOT_LOADED = '''[ ! "$not_loaded" ] || set -- sh -c 'echo "$1"; exit 1' sh "$not_loaded"'''
# After the modules: they may have the runtime.
CONTAINER = """runtime=$(command -v apptainer || command -v singularity)
if [ "$runtime" ]; then set -- "$runtime" exec --pwd "$PWD" {0} {1} "$@"
else set -- sh -c 'echo "gflow: there is no apptainer on $(hostname): see modules of the target"; exit 127'
fi"""
# Run the user's script from its original path, or from the submitted copy if the original has changed.
CHANGED = """script={0}
cmp -s {1} {0} || {{
  echo 'gflow: the script has changed since it was submitted: running it as it was'
  script={1}; export PYTHONPATH="$(dirname {0})${{PYTHONPATH:+:$PYTHONPATH}}"
}}"""
# Forward signals to the job and record its exit code. The subshell undoes that background commands of bash
# ignore SIGINT. If the claim file is gone, gflow has given the run up (its node was considered dead, and
# another attempt may run): the run kills itself.
PASSED = ("TERM", "INT", "HUP", "USR1", "USR2")
SIGNAL_NAMES = {number: name for name, number in SIGNALS.items()}
WARN = """warn() {
  [ ! "$told" ] || { pass "$1"; return; }
  told=told again=1 steps= pids=$child
  [ "$SLURM_JOB_NUM_NODES" = 1 ] || steps=1
  case $(readlink "/proc/$child/exe") in */bash|*/sh|*/dash|*/zsh|*/ksh*)
    pids=$(cat /proc/"$child"/task/*/children) ;; esac
  for pid in $pids; do
    if [ "$(cat "/proc/$pid/comm")" = srun ]; then steps=1; else kill -s "$1" "$pid"; fi
  done 2>/dev/null
  [ ! "$steps" ] || scancel --signal="$1" "$SLURM_JOB_ID"
}"""
RUN = """told=
pass() {{ told=told again=1; kill -s "$1" "$child" 2>/dev/null; }}
{traps}
(trap - INT QUIT; exec "$@") <&0 &
child=$!
(trap - INT HUP USR1 USR2; trap 'kill "$nap"; exit' TERM
while :; do
  sleep 5 & nap=$!; wait "$nap"
  [ -e "$me" ] || {{ sleep 1; [ -e "$me" ] || ! [ -d "${{me%/*}}" ] || kill -s KILL 0; }}
done) >/dev/null 2>&1 &
watcher=$!
again=1
while [ "$again" ]; do again=; wait "$child"; code=$?; done
kill "$watcher" 2>/dev/null
[ ! -e "$me" ] || {{ echo "$code $told" >"$run.new" && mv "$run.new" "$run.exit"; }}
exit $code"""
