"""A launch on all nodes of a Slurm job: srun starts one launcher on each node, from the first node.

Slurm itself sends stop signals to the processes that srun started on every node. The process that waits for
srun must not forward them: srun would then end everything at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from gflow.errors import Refused
from gflow.ml.launch.supervisor import UNFINISHED

# Environment variable with the address of the first rank, for the launchers that srun starts.
MEETING = "GFLOW_LAUNCH_MEETING"
# Environment variable with the seconds until the time limit, for the same launchers.
REMAINING = "GFLOW_LAUNCH_REMAINING"
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED = (signal.SIGUSR1, signal.SIGUSR2)


class NodePosition(NamedTuple):
    """The node of this launcher, the number of nodes, and the address of the first rank."""

    node: int
    nodes: int
    address: str
    port: int


def nodes_of(environ: Mapping[str, str]) -> int:
    """Return the number of nodes of the current Slurm job; 1 outside of a job."""
    number = environ.get("SLURM_NNODES", "")
    return int(number) if number.isdecimal() and "SLURM_JOB_ID" in environ else 1


def node_position(environ: Mapping[str, str]) -> NodePosition | None:
    """Read the position of this launcher from the environment; None if srun did not start it."""
    address, _, port = environ.get(MEETING, "").rpartition(":")
    node = environ.get("SLURM_NODEID", "")
    if not address or not port.isdecimal() or not node.isdecimal():
        return None
    return NodePosition(int(node), nodes_of(environ), address, int(port))


def check(wanted: int | None, environ: Mapping[str, str]) -> int:
    """Return the number of nodes. Refuses a `wanted` number that differs from the job's."""
    there = nodes_of(environ)
    if wanted is not None and wanted != there:
        whose = "the job has" if "SLURM_JOB_ID" in environ else "outside of a Slurm job there is"
        raise Refused(
            f"--nodes {wanted}: {whose} {there}",
            hint=f"gbatch --on slurm --nodes {wanted} --gpus G gflow launch …",
        )
    return there


def remaining_time(environ: Mapping[str, str]) -> dict[str, str]:
    """The seconds until the job's time limit, for the launchers of all nodes; empty without a limit.

    Clocks of nodes differ; a duration is the same on all of them.
    """
    end = environ.get("GFLOW_END_TIME", "")
    return {REMAINING: f"{int(end) - time.time():.1f}"} if end.isdecimal() else {}


def deadline_here(environ: Mapping[str, str]) -> dict[str, str]:
    """GFLOW_DEADLINE on the clock of this node, from the remaining time; empty without a limit."""
    left = environ.get(REMAINING, "")
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return {"GFLOW_DEADLINE": f"{now + float(left):.3f}"} if left else {}


def launch_on_nodes(words: Sequence[str], nodes: int, port: int) -> int:
    """Run the same launch on every node. Return the exit code of the first node that failed.

    A launcher that fails ends the others (--kill-on-bad-exit). A launcher that was stopped must not: others
    may still be saving. It exits with 0 and records its code in a file, see `record_exit`.
    """
    address = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    command = [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1",
        sys.executable, "-m", "gflow", "gflow", "launch", *words,
    ]  # fmt: skip
    sys.stderr.write(f"gflow: {nodes} nodes meet at {address}:{port}\n")
    sys.stderr.flush()
    told = {MEETING: f"{address}:{port}"} | remaining_time(os.environ)
    process = subprocess.Popen(command, env=os.environ | told)
    before = {number: signal.signal(number, lambda *_: None) for number in IGNORED}
    before |= {
        number: signal.signal(number, lambda found, _: process.send_signal(found)) for number in PASSED
    }
    try:
        code = process.wait()
        return _recorded_exit() or code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def record_exit(code: int) -> int:
    """Record a non-zero exit code, the first one only, and return the code with which this launcher exits."""
    if code:
        with suppress(FileExistsError), open(_exit_file(), "x", encoding="ascii") as file:
            file.write(str(code))
    return 0 if code == UNFINISHED else code


def _recorded_exit() -> int:
    """Read and remove the recorded exit code; 0: none was recorded."""
    try:
        with open(_exit_file(), encoding="ascii") as file:
            text = file.read()
        os.unlink(_exit_file())
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


def _exit_file() -> str:
    """Return a path that all nodes see: next to the job's stop file, or in the working directory."""
    stop_file = os.environ.get("GFLOW_STOP_FILE", "")
    beside = stop_file.removesuffix(".stop") if stop_file else os.path.abspath(".gflow-launch")
    return f"{beside}.launch-{os.environ['SLURM_JOB_ID']}"
