"""gflow launch: run a training script on one or more GPUs, one process per GPU."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from gflow.errors import Refused, UsageError
from gflow.options.commands.launch_options import OPTIONS
from gflow.options.parse import parse

if TYPE_CHECKING:
    from gflow.ml.launch.plan import Plan
    from gflow.ml.launch.slurm import NodePosition

ABOUT = """Run a training script on one or more GPUs: one process per GPU, with torchrun's environment and a
free rendezvous port. In a job it uses the job's GPUs; in a job on several nodes of a Slurm cluster, those
of all its nodes.

When one process fails, the others are stopped. A stop request is sent to all of them once; a script that
uses gflow.train then saves a checkpoint. The exit code is that of the process that failed first, or 75 if
they stopped before the end of training. NCCL's log goes to the folder of logs; one line shows the network
between nodes and the transport within a node. NCCL_DEBUG is not changed if it is set.
The output of the first rank is printed; that of the others is kept if they fail."""
EXAMPLES = """gflow launch train.py --lr 0.1
gflow launch --gpus 4 train.py
gflow launch --processes 4 -m mylab.train
gflow launch --nodes-file hosts.txt train.py
gbatch --gpus 4 --requeue --time 4:00:00 gflow launch train.py
gbatch --on slurm --nodes 2 --gpus 4 gflow launch train.py
gbatch --on slurm --nodes 2 --gpus 4 gflow launch --network ethernet train.py"""


def run(words: list[str]) -> int:
    values, command = parse(words, OPTIONS, until_word=True)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow launch [options] SCRIPT [ARGS…]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    from gflow.ml.launch.supervisor import UNFINISHED
    from gflow.ml.train.metering import FILE

    code = _launch(values, command, words)
    # A run that is measured (`gflow scale`) is stopped once it has been, and has not failed.
    return 0 if code == UNFINISHED and FILE in os.environ else code


def _launch(values: dict[str, Any], command: list[str], words: list[str]) -> int:
    """Start one process for each GPU, here or on all nodes, and return their exit code."""
    from gflow.ml.launch import slurm
    from gflow.ml.launch.plan import Plan
    from gflow.ml.launch.ports import free_port
    from gflow.ml.launch.supervisor import launch

    argv = command_of(command, is_module="module" in values)
    if "plan" in values:
        values = _with_plan(values)
    if "nccl-timeout" in values:
        os.environ["GFLOW_NCCL_TIMEOUT"] = str(values["nccl-timeout"])
    if "expandable-segments" in values:
        from gflow.ml.launch.allocator_setting import expandable_setting

        os.environ.update(expandable_setting(os.environ))
    processes = processes_of(values)
    logs = values.get("logs")
    name = os.environ.get("GFLOW_JOB_ID") or f"gflow-{os.getpid()}"
    nodes, here = slurm.check(values.get("nodes"), os.environ), slurm.node_position(os.environ)
    among_hosts = _host_position(values, nodes)
    with free_port() as port:
        if nodes > 1 and here is None:
            return slurm.launch_on_nodes(words, nodes, port)
        on_slurm, here = here, here or among_hosts
        plan = Plan(argv, processes, port=port, name=name)
        if here is not None:
            plan = plan._replace(
                node=here.node, nodes=here.nodes, address=here.address, port=here.port, name=name
            )
            if on_slurm is not None:
                os.environ.update(slurm.deadline_here(os.environ))
            _configure_network(values.get("network", "auto"), is_first=here.node == 0)
        _print_batch(plan)
        code = launch(
            plan,
            logs=None if logs is None else os.path.abspath(logs),
            grace_s=values.get("grace", 60),
            stall_s=values.get("stall", 0),
        )
        return code if on_slurm is None else slurm.record_exit(code)


def _host_position(values: dict[str, Any], nodes: int) -> NodePosition | None:
    """The position of this machine among those of --nodes-file; None without it."""
    if "nodes-file" not in values:
        for name in ("node", "port"):
            if name in values:
                raise UsageError(f"--{name} requires --nodes-file", hint="--nodes-file hosts.txt")
        return None
    if nodes > 1:
        raise UsageError("--nodes-file is for machines without Slurm, and this job has several nodes")
    from gflow.ml.launch.hosts import position, read_hosts

    return position(read_hosts(values["nodes-file"]), values.get("node"), values.get("port"))


def _with_plan(values: dict[str, Any]) -> dict[str, Any]:
    """Options completed by the plan file; its path is passed to scripts in GFLOW_PLAN."""
    from gflow.ml.fit import plan as planning

    path = os.path.abspath(values["plan"])
    plan = planning.read(path)
    os.environ["GFLOW_PLAN"] = path
    if "gpus" in values or "processes" in values:
        return values
    return {**values, "gpus": plan.chosen.gpus}


def _print_batch(plan: Plan) -> None:
    """Print how the effective batch is split, if the job has one (--effective-batch)."""
    from gflow.ml.launch.plan import batch_line, effective_batch

    batch = effective_batch(os.environ)
    if batch and plan.world > 1 and plan.node == 0:
        sys.stderr.write(f"gflow: {batch_line(batch, plan.world)}\n")
        sys.stderr.flush()


def _configure_network(network: str, *, is_first: bool) -> None:
    """Set NCCL's variables for this node, except those already set; the first node prints them."""
    from gflow.ml.launch.network import NETWORKS, choose, detect

    if network not in NETWORKS:
        raise UsageError(f"unknown network {network!a}", hint=f"--network takes: {', '.join(NETWORKS)}")
    choice = choose(network, *detect())
    new = {name: value for name, value in choice.variables.items() if name not in os.environ}
    os.environ.update(new)
    if is_first:
        shown = " ".join(f"{name}={value}" for name, value in new.items())
        sys.stderr.write(f"gflow: {choice.why}{': ' + shown if shown else ''}\n")


def command_of(command: list[str], *, is_module: bool) -> tuple[str, ...]:
    """The command of each process: files and modules run with the caller's Python, programs directly."""
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
    """Number of processes; refuses more than there are GPUs."""
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
