"""Parse what a cluster has and allows: nodes by partition, limits of accounts and QoS. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SINFO_FORMAT = "%P|%D|%c|%m|%f|%G"
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
