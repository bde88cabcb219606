"""What this machine has for the processes of a launch.

Which processes a launch consists of, and what each is told. Pure.

A process finds the same variables as under torchrun, so scripts and frameworks that know torchrun need
nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple


def gpus_there() -> tuple[int, str]:
    """How many GPUs the processes can have, and who has them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    whose = "the job has" if "GFLOW_JOB_ID" in os.environ else "CUDA_VISIBLE_DEVICES names"
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")]), whose
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount()), "this machine has"
    except pynvml.NVMLError:
        return 0, "this machine has"


class Plan(NamedTuple):
    """`processes` on this node, which is number `node` of `nodes`; the first rank of all listens at the
    address.
    """

    command: tuple[str, ...]
    processes: int
    address: str = "127.0.0.1"
    port: int = 0
    nodes: int = 1
    node: int = 0
    # Names this launch among others, for frameworks that ask.
    name: str = "gflow"

    @property
    def world(self) -> int:
        return self.processes * self.nodes

    def rank(self, local: int) -> int:
        return self.node * self.processes + local


def effective_batch(environ: Mapping[str, str]) -> int:
    """Samples of a step over all processes, as the job was submitted with; 0: nobody said."""
    text = environ.get("GFLOW_EFFECTIVE_BATCH", "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def share_of(batch: int, world: int, rank: int) -> int:
    """How many of them one process has: as many as the others, or one more."""
    return (rank + 1) * batch // world - rank * batch // world


def batch_line(batch: int, world: int) -> str:
    """The effective batch, for people."""
    least, rest = divmod(batch, world)
    if not rest:
        return f"effective batch {batch} = {world} processes x {least} samples"
    return f"effective batch {batch}: {world} processes with {least} or {least + 1} samples each"


def variables(
    plan: Plan, local: int, given: Mapping[str, str], cores: int, nccl_log: str = ""
) -> dict[str, str]:
    """What one process gets beside `given`, the launcher's own; what is set there stays.

    `nccl_log`: a file for what NCCL says about itself, with NCCL's own %h and %p in its name.
    """
    defaults = {
        # As many threads as cores would have every process compete with every other one.
        "OMP_NUM_THREADS": str(max(1, cores // plan.processes)),
        "NCCL_DEBUG": "WARN",
        # A rank whose peers are gone ends instead of waiting for them.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if nccl_log and "NCCL_DEBUG" not in given and "NCCL_DEBUG_FILE" not in given:
        defaults |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P,SHM",
            "NCCL_DEBUG_FILE": nccl_log,
        }
    if plan.nodes == 1:
        # Nothing goes over a network, so no firewall or virtual interface can be in the way.
        defaults |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    rank = plan.rank(local)
    if batch := effective_batch(given):
        defaults["GFLOW_RANK_BATCH"] = str(share_of(batch, plan.world, rank))
    return {name: value for name, value in defaults.items() if name not in given} | {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(plan.world),
        "LOCAL_WORLD_SIZE": str(plan.processes),
        "GROUP_RANK": str(plan.node),
        "GROUP_WORLD_SIZE": str(plan.nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(plan.world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": plan.address,
        "MASTER_PORT": str(plan.port),
        "TORCHELASTIC_RUN_ID": plan.name,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
