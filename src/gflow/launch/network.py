"""What NCCL is told about the network between nodes: by name, or by what this machine has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

NETWORKS = ("auto", "ethernet", "infiniband")
# Interfaces over which no other node is reached.
LOCAL_ONLY = ("lo", "docker", "veth", "virbr", "br-", "cni", "flannel")


class Choice(NamedTuple):
    """The variables, and the reason in words."""

    variables: dict[str, str]
    why: str


def chosen(network: str, adapters: Sequence[str], interfaces: Sequence[str]) -> Choice:
    """`adapters`: InfiniBand's (HCAs). `interfaces`: of the network, by name."""
    over_ib = sorted(name for name in interfaces if name.startswith("ib"))
    if network == "auto":
        network = "infiniband" if adapters else "ethernet"
        found = f"found {', '.join(adapters)}" if adapters else "no InfiniBand adapter"
    else:
        found = "asked for"
    if network == "infiniband":
        told = {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "PHB"}
        told |= {"NCCL_IB_HCA": ",".join(adapters)} if adapters else {}
        told |= {"NCCL_SOCKET_IFNAME": over_ib[0]} if over_ib else {}
    else:
        told = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "^" + ",".join(LOCAL_ONLY)}
    return Choice(told, f"network: {network} ({found})")


def seen() -> tuple[list[str], list[str]]:
    """InfiniBand adapters and network interfaces of this machine."""
    adapters: list[str] = []
    interfaces: list[str] = []
    with suppress(OSError):
        adapters = sorted(os.listdir("/sys/class/infiniband"))
    with suppress(OSError):
        interfaces = sorted(os.listdir("/sys/class/net"))
    return adapters, interfaces
