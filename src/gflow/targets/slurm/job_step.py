"""The shell script that runs a command in a job on a cluster, as a step of it (`gjob exec`). Pure.

The command gets the environment of the job, which is read from one of its processes on the node: srun would
give it the environment of the login node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gflow.targets.slurm.ssh.remote_shell import FIND_SLURM, join, quote

# Slurm's number of a task of an array: srun takes no other.
STEP = """id=$(squeue --noheader --states=RUNNING --jobs={id} --format=%A | head -n 1)
[ "$id" ] || {{ echo {ended} >&2; exit 125; }}
exec srun --overlap --jobid="$id" --nodes=1 --ntasks=1 --mpi=none --quiet {options} \\
  bash -c {script} {words}"""
# In the step. The arguments: a variable that processes of the run have, the terminal type, the command.
IN_STEP = """mark=$1 term=$2; shift 2
vars=()
for file in /proc/[0-9]*/environ; do
  if tr '\\0' '\\n' <"$file" | grep -qxF -e "$mark"; then
    while IFS= read -r -d '' one; do vars+=("$one"); done <"$file"
    break
  fi
done 2>/dev/null
[ "${#vars[@]}" = 0 ] || vars=(-i "${vars[@]}")
[ ! "$term" ] || vars+=("TERM=$term")
exec env "${vars[@]}" bash -c 'exec -- "$@"' gjob "$@\""""


class JobStep(NamedTuple):
    """A command for a running job. `id`: Slurm's id of the job. `stop_file`: as the job knows it."""

    id: str
    label: str
    target: str
    folder: str
    stop_file: str
    command: Sequence[str]
    is_tty: bool = False
    term: str = ""


def step_script(step: JobStep) -> str:
    """Lines for a POSIX shell on the login node. ValueError: a word holds a NUL."""
    options = [f"--chdir={step.folder}", *(["--pty"] if step.is_tty else [])]
    words = ["gjob", f"GFLOW_STOP_FILE={step.stop_file}", step.term, *step.command]
    text = STEP.format(
        id=quote(step.id),
        ended=quote(f"gjob: job {step.label} does not run on {step.target} any more"),
        options=join(options),
        script=quote(IN_STEP),
        words=join(words),
    )
    return f"{FIND_SLURM}\n{text}"
