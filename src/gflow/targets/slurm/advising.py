"""What to do about a refusal of sbatch: which partitions, accounts and nodes there are.

Asks Slurm, so not for the daemon's loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from gflow.errors import did_you_mean
from gflow.targets.slurm.commands import Slurm
from gflow.targets.slurm.inventory import Size

# Partitions and accounts that are named at most.
MOST = 4


def advise(slurm: Slurm, complaint: str, *, partition: str, account: str, qos: str, constraint: str) -> str:
    """A hint for somebody whose job was refused with these words; empty: nothing better is known.

    The names are those that the job had.
    """
    said = complaint.lower()
    if "account" in said:
        return _of("accounts", account, [one.account for one in slurm.limits()])
    if "qos" in said:
        return _of("qualities of service", qos, [name for one in slurm.limits() for name in one.qos])
    sizes = slurm.sizes()
    if "partition" in said:
        return _of("partitions", partition, [one.partition for one in sizes])
    if "feature" in said:
        return _of("features", constraint, [name for one in sizes for name in one.features])
    if "node configuration" in said or "node count" in said:
        wanted = partition.split(",") if partition else [one.partition for one in sizes if one.is_default]
        return describe_sizes([one for one in sizes if one.partition in wanted] or sizes)
    return ""


def _of(what: str, name: str, names: Sequence[str]) -> str:
    known = list(dict.fromkeys(name for name in names if name))
    if not known:
        return ""
    more = ", …" if len(known) > MOST else ""
    return did_you_mean(name, known, f"there are the {what} {', '.join(known[:MOST])}{more}")


def describe_sizes(sizes: Sequence[Size]) -> str:
    """`main has 4 nodes with 4 GPUs (a100) and 8 CPUs each`."""
    parts = []
    for one in sizes[:MOST]:
        gpus = f"{one.gpus} GPUs" + (f" ({', '.join(one.gpu_types)})" if one.gpu_types else "")
        nodes = f"{one.nodes} node{'s' if one.nodes != 1 else ''}"
        memory = f"{one.memory_mib // 1024} GiB"
        parts.append(f"{one.partition} has {nodes}, each with {gpus}, {one.cpus} CPUs and {memory} of memory")
    return "; ".join(parts)
