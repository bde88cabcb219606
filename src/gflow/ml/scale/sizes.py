"""The sizes of a scaling measurement: nodes, and processes per node. Pure."""

from __future__ import annotations

import msgspec

from gflow.errors import UsageError
from gflow.options.node_shape import parse_shape

MOST = 65536


class Size(msgspec.Struct, frozen=True):
    """`each` processes per node, with one GPU per process if `on_gpus`."""

    nodes: int
    each: int
    on_gpus: bool = True

    @property
    def gpus(self) -> int:
        return self.nodes * self.each

    @property
    def shape(self) -> str:
        return f"n{self.nodes}_gpu{self.each}" if self.on_gpus else f"{self.each} on CPU"

    @property
    def what(self) -> str:
        """Describe the size: `4 GPUs on 2 nodes`."""
        thing = "GPU" if self.on_gpus else "process"
        plural = "" if self.gpus == 1 else "s" if self.on_gpus else "es"
        where = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.gpus} {thing}{plural}{where}"


def sizes_of(gpus: str, shapes: str, processes: str) -> list[Size]:
    """Parse the options into sizes, the smallest first: it is the baseline of the comparison."""
    if processes and (gpus or shapes):
        raise UsageError("--processes is for runs without GPUs: it cannot be combined with --gpus or --shape")
    counts = gpus or processes
    found = {Size(1, _count(text), not processes) for text in counts.split(",") if counts}
    for text in shapes.split(",") if shapes else ():
        nodes, each = parse_shape(text)
        if not each:
            raise UsageError(f"--shape {text}: there is no GPU in it", hint="--shape n1_gpu4,n4_gpu1")
        found.add(Size(nodes, each))
    if len(found) < 2:
        raise UsageError("at least two sizes are needed", hint="--gpus 1,2,4")
    return sorted(found, key=lambda size: (size.gpus, size.nodes))


def _count(text: str) -> int:
    word = text.strip()
    if not (word.isascii() and word.isdecimal() and len(word) < 6 and 1 <= int(word) <= MOST):
        raise UsageError(f"{text!a:.60} is no number of GPUs or processes", hint="--gpus 1,2,4")
    return int(word)
