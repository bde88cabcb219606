"""Several machines without Slurm: a file names them, and the same command runs on each.

The ranks meet at the first host of the file. Each machine finds its own line. Nothing here needs PyTorch.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from gflow.errors import UsageError
from gflow.ml.launch.slurm import NodePosition

# Where rank 0 listens, if no port is given: that of torchrun. All machines must know it beforehand.
PORT = 29500


def read_hosts(path: str) -> list[str]:
    """Return the hosts of a file, one per line: its first word. `#` begins a comment."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    hosts = [words[0] for words in lines if words]
    if not hosts:
        raise UsageError(f"{path} names no hosts", hint="one host per line; the first is where ranks meet")
    return hosts


def is_here(host: str) -> bool:
    """Whether a host name or address is one of this machine."""
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            # Only an own address can be bound to.
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return host == socket.gethostname()


def position(
    hosts: Sequence[str], node: int | None, port: int | None, is_own: Callable[[str], bool] = is_here
) -> NodePosition:
    """Return this machine's position. `node`: its number, if it cannot be found by the names of the hosts."""
    if node is None:
        own = [number for number, host in enumerate(hosts) if is_own(host)]
        if len(own) != 1:
            found = "none of the hosts is" if not own else f"{len(own)} of the hosts are"
            raise UsageError(
                f"{found} this machine: {', '.join(hosts[:8])}", hint="--node 0 is the number of its line"
            )
        node = own[0]
    if not 0 <= node < len(hosts):
        raise UsageError(f"--node {node}: there are {len(hosts)} hosts, counted from 0")
    return NodePosition(node, len(hosts), hosts[0], port or PORT)
