"""Parse what a cluster has and allows: nodes by partition, limits of accounts and QoS. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SINFO_FORMAT = "%P|%D|%c|%m|%f|%G"
# Fields of `sinfo --Node --Format` with their widths: a line for each node of a partition.
NODE_FIELDS = {
    "Partition": 64, "StateCompact": 16, "Time": 20, "CPUs": 12, "Memory": 16, "Gres": 160, "GresUsed": 160,
}  # fmt: skip
# States of nodes that run jobs, or could.
USABLE = ("idle", "mix", "alloc", "comp", "plnd", "resv")
# Limits by their names in the accounting, with the text shown for each.
CAPS = {
    "GrpTRES": "all its jobs together have at most {}",
    "GrpJobs": "at most {} of its jobs run at once",
    "GrpSubmit": "at most {} of its jobs wait and run",
    "MaxTRES": "one job has at most {}",
    "MaxWall": "one job takes at most {}",
    "MaxJobs": "at most {} of your jobs run at once",
    "MaxSubmit": "at most {} of your jobs wait and run",
}
QOS_CAPS = {name: words for name, words in CAPS.items() if name not in ("MaxJobs", "MaxSubmit")} | {
    "MaxTRESPU": "your jobs together have at most {}",
    "MaxJobsPU": "at most {} of your jobs run at once",
    "MaxSubmitPU": "at most {} of your jobs wait and run",
    "MinTRES": "one job asks for at least {}",
}
ASSOC_FORMAT = ",".join(["User", "Account", "QOS", *CAPS])
QOS_FORMAT = ",".join(["Name", *QOS_CAPS])


class Size(NamedTuple):
    """Nodes of one kind in one partition. `is_default`: the partition of jobs that name none."""

    partition: str
    is_default: bool
    nodes: int
    cpus: int
    memory_mib: int
    features: tuple[str, ...]
    gpus: int
    gpu_types: tuple[str, ...]


class Partition(NamedTuple):
    """A partition and its nodes. `cpus`, `memory_mib`: of its smallest node. `gpus_free`: on usable nodes."""

    name: str
    is_default: bool
    # Empty: none.
    time_limit: str
    nodes: int
    idle: int
    unusable: int
    cpus: int
    memory_mib: int
    gpus: int
    gpus_free: int
    gpu_types: tuple[str, ...]


class Limits(NamedTuple):
    """Limits of one account, for one user or (empty user) for all of them. `caps`: the limits as text."""

    user: str
    account: str
    qos: tuple[str, ...]
    caps: tuple[str, ...]


def parse_sizes(text: str) -> list[Size]:
    """Parse `sinfo -h -o SINFO_FORMAT`: `main*|4|8+|16000|(null)|gpu:a100:4(S:0-1),nvme:1`."""
    sizes = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        numbers = [field.rstrip("+") for field in fields[1:4]]
        if len(fields) < 6 or not all(number.isascii() and number.isdecimal() for number in numbers):
            continue
        nodes, cpus, memory = map(int, numbers)
        features = () if fields[4] in ("(null)", "") else tuple(fields[4].split(","))
        name = fields[0]
        sizes.append(
            Size(name.rstrip("*"), name.endswith("*"), nodes, cpus, memory, features, *_gpus(fields[5]))
        )
    return sizes


def parse_partitions(text: str) -> list[Partition]:
    """Parse `sinfo -h --Node --Format=NODE_FIELDS`; the default partition has a star. Skips other lines."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        start, fields = 0, []
        for width in NODE_FIELDS.values():
            fields.append(line[start : start + width].strip())
            start += width
        name, state, limit, cpus, memory, gres, used = fields
        if not (name and cpus.isdecimal() and memory.isdecimal()):
            continue
        is_usable = state.startswith(USABLE) and not state.endswith("*")
        gpus, types = _gpus(gres)
        node = Partition(
            name=name.rstrip("*"),
            is_default=name.endswith("*"),
            time_limit="" if limit == "infinite" else limit,
            nodes=1,
            idle=int(is_usable and state.startswith("idle")),
            unusable=int(not is_usable),
            cpus=int(cpus),
            memory_mib=int(memory),
            gpus=gpus,
            gpus_free=max(0, gpus - _gpus(used)[0]) if is_usable else 0,
            gpu_types=types,
        )
        found[name] = _sum(found[name], node) if name in found else node
    return list(found.values())


def _sum(one: Partition, node: Partition) -> Partition:
    return one._replace(
        nodes=one.nodes + 1,
        idle=one.idle + node.idle,
        unusable=one.unusable + node.unusable,
        cpus=min(one.cpus, node.cpus),
        memory_mib=min(one.memory_mib, node.memory_mib),
        gpus=one.gpus + node.gpus,
        gpus_free=one.gpus_free + node.gpus_free,
        gpu_types=tuple(dict.fromkeys(one.gpu_types + node.gpu_types)),
    )


def _gpus(gres: str) -> tuple[int, tuple[str, ...]]:
    """Number and types of the GPUs in a GRES string such as `gpu:a100:4(S:0-1),gpu:v100:2`."""
    count, types = 0, []
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = part.strip().split(":")
        if words[0] == "gpu" and words[-1].isascii() and words[-1].isdecimal():
            count += int(words[-1])
            types += words[1:-1]
    return count, tuple(types)


def parse_limits(text: str) -> list[Limits]:
    """Parse `sacctmgr -n -P show assoc format=ASSOC_FORMAT`."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) >= 3 + len(CAPS) and fields[1]:
            qos = tuple(filter(None, fields[2].split(",")))
            found.append(Limits(fields[0], fields[1], qos, _caps(CAPS, fields[3:])))
    return found


def parse_qos(text: str) -> tuple[str, ...]:
    """The limits that are set, as text, in the first line of `sacctmgr -n -P show qos format=QOS_FORMAT`."""
    fields = text.partition("\n")[0].split("|")
    return _caps(QOS_CAPS, fields[1:]) if len(fields) > len(QOS_CAPS) else ()


def _caps(words: Mapping[str, str], values: Sequence[str]) -> tuple[str, ...]:
    pairs = zip(words.values(), (value.strip() for value in values), strict=False)
    return tuple(template.format(value) for template, value in pairs if value)


def parse_owner(text: str) -> tuple[str, str]:
    """The account and the QoS in the output of `scontrol -o show job ID`; empty if absent."""
    rest = text.partition(" UserId=")[2] or text
    found = [re.search(rf"\b{name}=(\S+)", rest) for name in ("Account", "QOS")]
    account, qos = ("" if one is None or one[1] == "(null)" else one[1] for one in found)
    return account, qos
