"""A launch over all nodes of a Slurm job: one launcher on each, started by srun from the first of them.

Slurm itself sends stop requests to what srun started, on every node; so the one that waits for srun must not
pass them on: srun would then end everything at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from gflow.errors import Refused
from gflow.ml.launch.supervisor import UNFINISHED

# Where the first rank listens; set for the launchers that srun starts.
MEETING = "GFLOW_LAUNCH_MEETING"
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED = (signal.SIGUSR1, signal.SIGUSR2)


class Here(NamedTuple):
    """Which node of how many this launcher is for, and where the first rank listens."""

    node: int
    nodes: int
    address: str
    port: int


def nodes_of(environ: Mapping[str, str]) -> int:
    """How many nodes the Slurm job has in which we are; 1 outside of one."""
    number = environ.get("SLURM_NNODES", "")
    return int(number) if number.isdecimal() and "SLURM_JOB_ID" in environ else 1


def here(environ: Mapping[str, str]) -> Here | None:
    """What srun and the first launcher told us; None: nobody started us so."""
    address, _, port = environ.get(MEETING, "").rpartition(":")
    node = environ.get("SLURM_NODEID", "")
    if not address or not port.isdecimal() or not node.isdecimal():
        return None
    return Here(int(node), nodes_of(environ), address, int(port))


def check(wanted: int | None, environ: Mapping[str, str]) -> int:
    """The nodes to use: those asked for must be those that the job has."""
    there = nodes_of(environ)
    if wanted is not None and wanted != there:
        whose = "the job has" if "SLURM_JOB_ID" in environ else "outside of a Slurm job there is"
        raise Refused(
            f"--nodes {wanted}: {whose} {there}",
            hint=f"gbatch --on slurm --nodes {wanted} --gpus G gflow launch …",
        )
    return there


def spread(words: Sequence[str], nodes: int, port: int) -> int:
    """The same launch on every node; its exit code is that of the first that failed.

    A node that fails takes the others with it. Those that were stopped and are saving must not be: they leave
    with 0 and a word about it.
    """
    address = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    command = [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1",
        sys.executable, "-m", "gflow", "gflow", "launch", *words,
    ]  # fmt: skip
    sys.stderr.write(f"gflow: {nodes} nodes meet at {address}:{port}\n")
    sys.stderr.flush()
    process = subprocess.Popen(command, env=os.environ | {MEETING: f"{address}:{port}"})
    before = {number: signal.signal(number, lambda *_: None) for number in IGNORED}
    before |= {
        number: signal.signal(number, lambda found, _: process.send_signal(found)) for number in PASSED
    }
    try:
        code = process.wait()
        return _said() or code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(code: int) -> int:
    """How the launcher of one node ends: what its code was, the first that has one writes down for all."""
    if code:
        with suppress(FileExistsError), open(_note(), "x", encoding="ascii") as file:
            file.write(str(code))
    return 0 if code == UNFINISHED else code


def _said() -> int:
    """What a launcher wrote down; 0: all was well, or it could not."""
    try:
        with open(_note(), encoding="ascii") as file:
            text = file.read()
        os.unlink(_note())
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


def _note() -> str:
    """A file that all nodes see: beside the job's stop file, or in its folder."""
    stop_file = os.environ.get("GFLOW_STOP_FILE", "")
    beside = stop_file.removesuffix(".stop") if stop_file else os.path.abspath(".gflow-launch")
    return f"{beside}.launch-{os.environ['SLURM_JOB_ID']}"
