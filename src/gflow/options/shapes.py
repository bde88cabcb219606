"""Shapes: how many nodes with how many GPUs each, in a word: `n4_gpu1`, `n4g1` or `4x1`."""

from __future__ import annotations

from gflow.options.values import refuse

MOST = 65536


def parse_shape(text: str) -> tuple[int, int]:
    """Nodes, and GPUs on each."""
    word = text.strip().lower().replace("_", "").replace("gpu", "g").removeprefix("n")
    nodes, sign, gpus = word.partition("x" if "x" in word else "g")
    if not (sign and nodes.isascii() and nodes.isdecimal() and gpus.isascii() and gpus.isdecimal()):
        refuse(f"{text!a:.60} is no shape", "a shape is nodes and GPUs on each: n4_gpu1")
    if not (len(nodes) < 7 and len(gpus) < 7 and 1 <= int(nodes) <= MOST and int(gpus) <= MOST):
        refuse(f"the shape {text!a:.60} is out of reach", f"nodes: 1 to {MOST}, GPUs on each: 0 to {MOST}")
    return int(nodes), int(gpus)
