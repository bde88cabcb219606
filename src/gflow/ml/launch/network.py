"""What NCCL is told about the network between nodes: by name, or by what this machine has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

NETWORKS = ("auto", "ethernet", "infiniband")
# Interfaces over which no other node is reached.
LOCAL_ONLY = ("lo", "docker", "veth", "virbr", "br-", "cni", "flannel")


class Adapter(NamedTuple):
    """One of InfiniBand's (an HCA). `layer`: what its cable carries, InfiniBand or Ethernet (RoCE)."""

    name: str
    is_active: bool = True
    layer: str = "InfiniBand"


class Choice(NamedTuple):
    """The variables, and the reason in words."""

    variables: dict[str, str]
    why: str


def chosen(network: str, adapters: Sequence[Adapter], interfaces: Sequence[str]) -> Choice:
    """`interfaces`: those of the network that are up, by name."""
    over_ib = sorted(name for name in interfaces if name.startswith("ib"))
    active = [adapter for adapter in adapters if adapter.is_active]
    names = ", ".join(adapter.name for adapter in active or adapters)
    if network == "auto":
        network = "infiniband" if active else "ethernet"
        found = f"{names} not active" if adapters else "no InfiniBand adapter"
        if active:
            over_ethernet = all(adapter.layer == "Ethernet" for adapter in active)
            found = f"found {names}" + (", RoCE" if over_ethernet else "")
    else:
        found = "asked for"
        if network == "infiniband" and not active:
            found += f"; {names} not active" if adapters else "; this node has no adapter for it"
    if network == "infiniband":
        told = {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "PHB"}
        told |= {"NCCL_IB_HCA": ",".join(adapter.name for adapter in active)} if active else {}
        told |= {"NCCL_SOCKET_IFNAME": over_ib[0]} if over_ib else {}
    else:
        told = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "^" + ",".join(LOCAL_ONLY)}
    return Choice(told, f"network: {network} ({found})")


def seen(root: str = "/sys/class") -> tuple[list[Adapter], list[str]]:
    """InfiniBand adapters of this machine, and its network interfaces that are up."""
    adapters: list[Adapter] = []
    interfaces: list[str] = []
    with suppress(OSError):
        adapters = [_adapter(root, name) for name in sorted(os.listdir(f"{root}/infiniband"))]
    with suppress(OSError):
        interfaces = [name for name in sorted(os.listdir(f"{root}/net")) if _is_up(root, name)]
    return adapters, interfaces


def _adapter(root: str, name: str) -> Adapter:
    ports = f"{root}/infiniband/{name}/ports"
    states, layers = [], []
    with suppress(OSError):
        for port in sorted(os.listdir(ports)):
            states.append(_line(f"{ports}/{port}/state"))
            layers.append(_line(f"{ports}/{port}/link_layer"))
    # `4: ACTIVE`. Where nothing is said, it is taken to work: NCCL looks for itself.
    is_active = not any(states) or any("ACTIVE" in state for state in states)
    return Adapter(name, is_active, next(filter(None, layers), "InfiniBand"))


def _is_up(root: str, name: str) -> bool:
    """Loopback and some virtual ones say `unknown`."""
    return _line(f"{root}/net/{name}/operstate") in ("up", "unknown", "")


def _line(path: str) -> str:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read().strip()
    return ""
