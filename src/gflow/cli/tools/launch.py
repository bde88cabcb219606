"""gflow launch: a training script on one GPU or several, one process for each."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from gflow.errors import Refused, UsageError
from gflow.options.parse import parse
from gflow.options.table import COMMON, Option

if TYPE_CHECKING:
    from gflow.ml.launch.plan import Plan

OPTIONS = (
    Option(
        "gpus",
        "count",
        "processes, one for each GPU (default: all GPUs of the job, or of this machine)",
        short="g",
        metavar="G",
        low=1,
        high=1024,
    ),
    Option("processes", "count", "so many processes without GPUs", metavar="N", low=1, high=1024),
    Option(
        "nodes",
        "count",
        "nodes of the Slurm job, for a check (default: all of them)",
        metavar="N",
        low=1,
        high=65536,
    ),
    Option(
        "network",
        "text",
        "what NCCL uses between nodes: auto (looks what there is, and says so; the default), ethernet or "
        "infiniband",
        metavar="KIND",
        choices=("auto", "ethernet", "infiniband"),
    ),
    Option(
        "plan",
        "path",
        "a file of gflow plan --out: for train.Run.planned(), and as many GPUs as it has unless you say",
        metavar="FILE",
    ),
    Option("module", "flag", "run a Python module instead of a file", short="m"),
    Option("logs", "path", "keep what each rank prints in this folder", metavar="DIR"),
    Option(
        "stall",
        "seconds",
        "end it when no rank has printed anything for so long, in seconds or 10:00 (default: never)",
        metavar="T",
        low=1,
    ),
    Option(
        "grace",
        "seconds",
        "time between a stop request and KILL, in seconds or 1:30 (default 60; in a job its --grace counts)",
        metavar="S",
        low=0,
    ),
    *COMMON,
)
ABOUT = """Run a training script on one GPU or several: one process for each, as torchrun starts them, which
find each other at a port that is free. In a job it takes the job's GPUs; in a job on several nodes of a
Slurm cluster, those of all its nodes.

When one process fails the others are ended. A stop request goes to all of them once; a script that uses
gflow.train then saves itself. The exit code is that of the process that failed first, or 75 when they
stopped before their end. What NCCL says about itself goes into the folder of logs; over which network and
how within a node the processes talk is said in one line. NCCL_DEBUG, if you set it, stays yours.
The first rank's output comes here; that of the others is kept if they fail."""
EXAMPLES = """gflow launch train.py --lr 0.1
gflow launch --gpus 4 train.py
gflow launch --processes 4 -m mylab.train
gbatch --gpus 4 --requeue --time 4:00:00 gflow launch train.py
gbatch --on slurm --nodes 2 --gpus 4 gflow launch train.py
gbatch --on slurm --nodes 2 --gpus 4 gflow launch --network ethernet train.py"""


def run(words: list[str]) -> int:
    values, command = parse(words, OPTIONS, until_word=True)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow launch [options] SCRIPT [ARGS…]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    from gflow.ml.launch import slurm
    from gflow.ml.launch.plan import Plan
    from gflow.ml.launch.ports import free_port
    from gflow.ml.launch.supervisor import launch

    argv = command_of(command, is_module="module" in values)
    if "plan" in values:
        values = _with_plan(values)
    processes = processes_of(values)
    logs = values.get("logs")
    name = os.environ.get("GFLOW_JOB_ID") or f"gflow-{os.getpid()}"
    nodes, here = slurm.check(values.get("nodes"), os.environ), slurm.node_position(os.environ)
    with free_port() as port:
        if nodes > 1 and here is None:
            return slurm.launch_on_nodes(words, nodes, port)
        plan = Plan(argv, processes, port=port, name=name)
        if here is not None:
            plan = plan._replace(
                node=here.node, nodes=here.nodes, address=here.address, port=here.port, name=name
            )
            _tell_network(values.get("network", "auto"), is_first=here.node == 0)
        _tell_batch(plan)
        code = launch(
            plan,
            logs=None if logs is None else os.path.abspath(logs),
            grace_s=values.get("grace", 60),
            stall_s=values.get("stall", 0),
        )
        return code if here is None else slurm.record_exit(code)


def _with_plan(values: dict[str, Any]) -> dict[str, Any]:
    """The options with what a plan says; scripts find its path in GFLOW_PLAN."""
    from gflow.ml.fit import plan as planning

    path = os.path.abspath(values["plan"])
    plan = planning.read(path)
    os.environ["GFLOW_PLAN"] = path
    if "gpus" in values or "processes" in values:
        return values
    return {**values, "gpus": plan.chosen.gpus}


def _tell_batch(plan: Plan) -> None:
    """What a step consists of, where the job says so: the same in every shape."""
    from gflow.ml.launch.plan import batch_line, effective_batch

    batch = effective_batch(os.environ)
    if batch and plan.world > 1 and plan.node == 0:
        sys.stderr.write(f"gflow: {batch_line(batch, plan.world)}\n")
        sys.stderr.flush()


def _tell_network(network: str, *, is_first: bool) -> None:
    """NCCL's variables for this node; those that somebody has set stay."""
    from gflow.ml.launch.network import NETWORKS, choose, detect

    if network not in NETWORKS:
        raise UsageError(f"--network knows no {network!a}", hint=f"there are: {', '.join(NETWORKS)}")
    choice = choose(network, *detect())
    new = {name: value for name, value in choice.variables.items() if name not in os.environ}
    os.environ.update(new)
    if is_first:
        told = " ".join(f"{name}={value}" for name, value in new.items())
        sys.stderr.write(f"gflow: {choice.why}{': ' + told if told else ''}\n")


def command_of(command: list[str], *, is_module: bool) -> tuple[str, ...]:
    """What each process runs: Python files and modules with the Python of the caller, other things as they
    are.
    """
    if not command:
        raise UsageError("there is no script to launch", hint="gflow launch train.py")
    if not is_module and not command[0].endswith(".py"):
        if shutil.which(command[0]) is None:
            raise UsageError(f"there is no program {command[0]!a}", hint="gflow launch train.py")
        return tuple(command)
    if not is_module and not os.path.isfile(command[0]):
        raise UsageError(f"there is no file {command[0]!a}")
    python = shutil.which("python") or shutil.which("python3") or sys.executable
    return (python, *(["-m"] if is_module else []), *command)


def processes_of(values: dict[str, Any]) -> int:
    """How many processes: what was asked for, as far as there are GPUs for them."""
    if "processes" in values:
        if "gpus" in values:
            raise UsageError("--gpus and --processes do not go together")
        return int(values["processes"])
    from gflow.ml.launch.plan import available_gpus

    there, whose = available_gpus()
    wanted = int(values.get("gpus", there or 1))
    if "gpus" in values and wanted > there:
        raise Refused(
            f"--gpus {wanted}: {whose} {there or 'none'}",
            hint="--processes N starts processes without GPUs",
        )
    return wanted
