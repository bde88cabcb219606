"""The processes of a launch and the environment variables of each. Pure, except `available_gpus`.

A process gets the same variables as under torchrun, so scripts and frameworks written for torchrun work
unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple


def available_gpus() -> tuple[int, str]:
    """Return how many GPUs the processes can use, and the start of a sentence about where they come from."""
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
    """`processes` ranks on this node, which is number `node` of `nodes`. Rank 0 listens at `address:port`."""

    command: tuple[str, ...]
    processes: int
    address: str = "127.0.0.1"
    port: int = 0
    nodes: int = 1
    node: int = 0
    # Identifies this launch (TORCHELASTIC_RUN_ID).
    name: str = "gflow"

    @property
    def world(self) -> int:
        return self.processes * self.nodes

    def rank(self, local: int) -> int:
        return self.node * self.processes + local


def effective_batch(environ: Mapping[str, str]) -> int:
    """Return the effective batch (samples per step over all processes) of the job; 0: not given."""
    text = environ.get("GFLOW_EFFECTIVE_BATCH", "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def share_of(batch: int, world: int, rank: int) -> int:
    """Return one process's samples of the effective batch. Shares differ by at most one."""
    return (rank + 1) * batch // world - rank * batch // world


def batch_line(batch: int, world: int) -> str:
    """Describe the effective batch in one line."""
    least, rest = divmod(batch, world)
    if not rest:
        return f"effective batch {batch} = {world} processes x {least} samples"
    return f"effective batch {batch}: {world} processes with {least} or {least + 1} samples each"


def variables(
    plan: Plan, local: int, given: Mapping[str, str], cores: int, nccl_log: str = ""
) -> dict[str, str]:
    """Return the variables that one process gets in addition to the launcher's own, `given`.

    Except for the rank variables, a variable that is set in `given` is kept. `nccl_log`: NCCL's log file,
    with NCCL's placeholders %h and %p in its name.
    """
    defaults = {
        # Divide the cores: with a thread per core in each process, the processes would compete.
        "OMP_NUM_THREADS": str(max(1, cores // plan.processes)),
        "NCCL_DEBUG": "WARN",
        # A rank whose peers have died ends instead of waiting for them.
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
        # Use loopback only, so that no firewall or virtual interface interferes.
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
