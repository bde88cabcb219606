"""Parser for NCCL's log: which transports its ranks use.

NCCL writes a line for each channel between two ranks:
`Channel 00/0 : 3[3] -> 8[0] [send] via NET/IB/0/GDRDMA`. The formats are those of 2.4 to 2.28.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Log file name in the launch's log directory; NCCL replaces %h (host) and %p (process id).
FILES = "nccl-%h-%p.log"
# Bytes read of each file: NCCL's initialisation lies within them.
MOST = 4 << 20
VERSION = re.compile(r"NCCL version (\d[\w.+-]*)")
CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\](?: \[\w+\])? via (.+?)(?: comm 0x.*)?$"
)
USING = re.compile(r"NET/(\S[^:]*?) ?: Using (.*)")
NETWORK = re.compile(r"Using network (\S.*)")
WARNING = re.compile(r"NCCL WARN (.+)")
DEVICE = re.compile(r"\[\d+\]([^\s;<]+)")


class NcclReport(NamedTuple):
    """Contents of a log. Networks and paths are sorted by number of channels, most first."""

    version: str
    # Between nodes: `IB`, `Socket`, `AWS Libfabric`; those with `/GDRDMA` go from GPU to adapter directly.
    networks: tuple[str, ...]
    direct: bool
    # Adapters and interfaces, as NCCL lists them: `mlx5_0:1/IB`, `eth0:10.4.2.17`.
    devices: tuple[str, ...]
    # Within a node: `P2P/CUMEM`, `P2P/IPC`, `SHM`.
    paths: tuple[str, ...]
    # The network that NCCL initialised, whether or not a channel uses it.
    ready: str
    warnings: tuple[str, ...]

    @property
    def has_transports(self) -> bool:
        return bool(self.networks or self.paths)


def parse(text: str) -> NcclReport:
    """Parse the text of one or several logs."""
    version = ready = ""
    networks: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    with_gpu = 0
    devices: dict[str, tuple[str, ...]] = {}
    warnings: dict[str, None] = {}
    for line in text.splitlines():
        if "NCCL" not in line:
            continue
        if found := CHANNEL.search(line):
            kind, _, rest = found[1].strip().partition("/")
            if kind == "NET":
                networks[_net(rest)] += 1
                with_gpu += "GDRDMA" in rest
            else:
                paths[_path(found[1].strip())] += 1
        elif found := USING.search(line):
            devices[found[1]] = tuple(DEVICE.findall(found[2].partition(";")[0]))
        elif found := NETWORK.search(line):
            ready = found[1].strip()
        elif found := WARNING.search(line):
            warnings[found[1].strip()] = None
        elif found := VERSION.search(line):
            version = found[1]
    used = tuple(name for name, _ in networks.most_common())
    return NcclReport(
        version=version,
        networks=used,
        direct=bool(networks) and with_gpu == networks.total(),
        devices=devices.get((used[0] if used else ready).partition("ext")[0], ()),
        paths=tuple(name for name, _ in paths.most_common()),
        ready=ready,
        warnings=tuple(warnings),
    )


def _net(rest: str) -> str:
    """`Socket/0`, `IB/0(1)`, `AWS Libfabric/3/Shared`: the name before the number of the device."""
    return re.split(r"/\d|/GDRDMA|/Shared", rest)[0]


def _path(via: str) -> str:
    """`P2P/IPC/read`, `SHM/direct/direct`, `direct shared memory`: without the parts that vary by channel."""
    if "shared memory" in via or via.startswith("SHM"):
        return "SHM"
    return "/".join(via.split("/")[:2]) if "[" not in via else "P2P/indirect"


def describe(report: NcclReport, adapters: Sequence[str] = ()) -> str:
    """Describe the transports in one line; empty if there are none yet. `adapters`: local InfiniBand ones."""
    if not report.has_transports:
        return ""
    parts = []
    if report.networks:
        named = ", ".join(_named(name, report.devices) for name in report.networks)
        between = f"between nodes {named}"
        if "Socket" not in report.networks[0]:
            between += " with GPUDirect RDMA" if report.direct else " without GPUDirect RDMA"
        elif adapters:
            between += f" (InfiniBand is present but not used: {', '.join(adapters)})"
        parts.append(between)
    if report.paths:
        parts.append(f"within a node {', '.join(_meaning(path) for path in report.paths)}")
    return f"NCCL{' ' + report.version if report.version else ''}: {'; '.join(parts)}"


def _named(network: str, devices: Iterable[str]) -> str:
    shown = list(dict.fromkeys(device.partition(":")[0] for device in devices))
    over = f" over {', '.join(shown[:4])}{', …' if len(shown) > 4 else ''}" if shown else ""
    if network == "Socket":
        return f"TCP sockets{over}"
    if network.startswith("IB"):
        kind = "RoCE" if any(device.endswith("/RoCE") for device in devices) else "InfiniBand"
        return f"{kind}{over}"
    return network


def _meaning(path: str) -> str:
    kind = path.partition("/")[0]
    words = {"P2P": "from GPU to GPU", "SHM": "through host memory"}.get(kind, "")
    return f"{words} ({path})" if words else path


def read(folder: str) -> str:
    """Return the logs of all processes on this node."""
    texts = []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "nccl-*.log"))):
        with open(path, encoding="utf-8", errors="replace") as file:
            texts.append(file.read(MOST))
    return "\n".join(texts)
