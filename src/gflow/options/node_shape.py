"""Shapes: how many nodes with how many GPUs each, in a word: `n4_gpu1`, `n4g1` or `4x1`; or by a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflow.errors import UsageError, did_you_mean
from gflow.options.table import NAME_LENGTH, refuse

MOST = 65536


def is_name(text: str) -> bool:
    """Whether this can only be the name of a shape: a word that is none of the forms of `parse_shape`."""
    word = text.strip()
    fine = word.isascii() and word[:1].isalpha() and len(word) <= NAME_LENGTH
    return fine and word.replace("-", "").replace("_", "").replace(".", "").isalnum() and not _halves(word)


def _halves(text: str) -> tuple[str, str] | None:
    """The two numbers of a shape, still as text; None: it is none."""
    word = text.strip().lower().replace("_", "").replace("gpu", "g").removeprefix("n")
    nodes, sign, gpus = word.partition("x" if "x" in word else "g")
    is_shape = sign and nodes.isascii() and nodes.isdecimal() and gpus.isascii() and gpus.isdecimal()
    return (nodes, gpus) if is_shape else None


def parse_shape(text: str) -> tuple[int, int]:
    """Nodes, and GPUs on each."""
    halves = _halves(text)
    if halves is None:
        refuse(f"{text!a:.60} is no shape", "a shape is nodes and GPUs on each: n4_gpu1")
    nodes, gpus = halves
    if not (len(nodes) < 7 and len(gpus) < 7 and 1 <= int(nodes) <= MOST and int(gpus) <= MOST):
        refuse(f"the shape {text!a:.60} is out of reach", f"nodes: 1 to {MOST}, GPUs on each: 0 to {MOST}")
    return int(nodes), int(gpus)


def spread(options: dict[str, Any], shapes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Options with what their shapes mean among them. The name of one that has a name stays."""
    if "race" in options:
        options = {**options, "race": _raced(options["race"], shapes)}
    word = options.get("shape")
    if not isinstance(word, str):
        return options
    if not is_name(word):
        nodes, gpus = parse_shape(word)
        others = {name: value for name, value in options.items() if name != "shape"}
        return {"nodes": nodes, "gpus": gpus, **others}
    return {**_named(word.strip(), shapes), **options}


def _named(word: str, shapes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    if word not in shapes:
        usual = "a shape is nodes and GPUs on each: n4_gpu1; or a name that gflow.toml has: [shapes.NAME]"
        raise UsageError(f"there is no shape {word!a:.60}", hint=did_you_mean(word, shapes, usual))
    return shapes[word]


def _raced(value: Any, shapes: Mapping[str, Mapping[str, Any]]) -> Any:
    """The shapes of a race without names. What is no list of texts stays: whoever reads it refuses it."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        return value
    return [_written(part.strip(), shapes) for part in parts]


def _written(entry: str, shapes: Mapping[str, Mapping[str, Any]]) -> str:
    """`local:small` as `local:n1_gpu2`."""
    target, colon, word = entry.rpartition(":")
    if not is_name(word):
        return entry
    shape = _named(word, shapes)
    if more := sorted(shape.keys() - {"nodes", "gpus"}):
        what = f"the shape {word} says more than that: {', '.join(more)}"
        raise UsageError(f"those who race differ in nodes and GPUs alone, and {what}", hint=f"--{more[0]} …")
    return f"{target}{colon}n{shape.get('nodes', 1)}_gpu{shape.get('gpus', 0)}"
