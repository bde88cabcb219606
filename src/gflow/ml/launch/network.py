"""NCCL settings for the network between nodes: chosen by the user, or by the adapters of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

NETWORKS = ("auto", "ethernet", "infiniband")
# Prefixes of interfaces that reach no other node.
LOCAL_ONLY = ("lo", "docker", "veth", "virbr", "br-", "cni", "flannel")


class Adapter(NamedTuple):
    """An InfiniBand adapter (HCA). `layer`: its link layer, InfiniBand or Ethernet (RoCE)."""

    name: str
    is_active: bool = True
    layer: str = "InfiniBand"


class Choice(NamedTuple):
    """The environment variables, and the reason as a line of text."""

    variables: dict[str, str]
    why: str


def choose(network: str, adapters: Sequence[Adapter], interfaces: Sequence[str]) -> Choice:
    """Choose NCCL's variables. `interfaces`: names of the network interfaces that are up."""
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
        variables = {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "PHB"}
        variables |= {"NCCL_IB_HCA": ",".join(adapter.name for adapter in active)} if active else {}
        variables |= {"NCCL_SOCKET_IFNAME": over_ib[0]} if over_ib else {}
    else:
        variables = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "^" + ",".join(LOCAL_ONLY)}
    return Choice(variables, f"network: {network} ({found})")


def detect(root: str = "/sys/class") -> tuple[list[Adapter], list[str]]:
    """Return the InfiniBand adapters of this machine, and its network interfaces that are up."""
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
    # `4: ACTIVE`. An adapter without a state counts as active: NCCL checks it itself.
    is_active = not any(states) or any("ACTIVE" in state for state in states)
    return Adapter(name, is_active, next(filter(None, layers), "InfiniBand"))


def _is_up(root: str, name: str) -> bool:
    """Whether the interface is up. Loopback and some virtual interfaces report `unknown`."""
    return _line(f"{root}/net/{name}/operstate") in ("up", "unknown", "")


def _line(path: str) -> str:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read().strip()
    return ""
