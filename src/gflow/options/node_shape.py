"""Shapes: nodes and GPUs per node as one word, `n4_gpu1`, `n4g1` or `4x1`; or a name in gflow.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflow.errors import UsageError, did_you_mean
from gflow.options.job_options import NAME_LENGTH, refuse

MOST = 65536


def is_name(text: str) -> bool:
    """Whether `text` is the name of a shape: a word that `parse_shape` does not accept."""
    word = text.strip()
    is_word = word.isascii() and word[:1].isalpha() and len(word) <= NAME_LENGTH
    return is_word and word.replace("-", "").replace("_", "").replace(".", "").isalnum() and not _halves(word)


def _halves(text: str) -> tuple[str, str] | None:
    """The two numbers of a shape, as text; None: not a shape."""
    word = text.strip().lower().replace("_", "").replace("gpu", "g").removeprefix("n")
    nodes, sign, gpus = word.partition("x" if "x" in word else "g")
    is_shape = sign and nodes.isascii() and nodes.isdecimal() and gpus.isascii() and gpus.isdecimal()
    return (nodes, gpus) if is_shape else None


def parse_shape(text: str) -> tuple[int, int]:
    """Number of nodes, and GPUs per node."""
    halves = _halves(text)
    if halves is None:
        refuse(f"{text!a:.60} is not a shape", "a shape is nodes and GPUs per node: n4_gpu1")
    nodes, gpus = halves
    if not (len(nodes) < 7 and len(gpus) < 7 and 1 <= int(nodes) <= MOST and int(gpus) <= MOST):
        refuse(f"the shape {text!a:.60} is out of range", f"nodes: 1 to {MOST}, GPUs per node: 0 to {MOST}")
    return int(nodes), int(gpus)


def expand_shapes(options: dict[str, Any], shapes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Add the options that `shape` and `race` stand for. The name of a named shape is kept in `shape`."""
    if "race" in options:
        options = {**options, "race": _expand_race(options["race"], shapes)}
    word = options.get("shape")
    if not isinstance(word, str):
        return options
    if not is_name(word):
        nodes, gpus = parse_shape(word)
        others = {name: value for name, value in options.items() if name != "shape"}
        return {"nodes": nodes, "gpus": gpus, **others}
    return {**_find_shape(word.strip(), shapes), **options}


def _find_shape(word: str, shapes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    if word not in shapes:
        usual = "a shape is nodes and GPUs per node: n4_gpu1; or a name defined in gflow.toml: [shapes.NAME]"
        raise UsageError(f"there is no shape {word!a:.60}", hint=did_you_mean(word, shapes, usual))
    return shapes[word]


def _expand_race(value: Any, shapes: Mapping[str, Mapping[str, Any]]) -> Any:
    """Replace named shapes of a race. A value of another type is returned as is; its reader refuses it."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        return value
    return [_expand_entry(part.strip(), shapes) for part in parts]


def _expand_entry(entry: str, shapes: Mapping[str, Mapping[str, Any]]) -> str:
    """Replace a named shape: `local:small` -> `local:n1_gpu2`."""
    target, colon, word = entry.rpartition(":")
    if not is_name(word):
        return entry
    shape = _find_shape(word, shapes)
    if more := sorted(shape.keys() - {"nodes", "gpus"}):
        what = f"the shape {word} also sets {', '.join(more)}"
        raise UsageError(
            f"shapes in a race may differ only in nodes and GPUs, but {what}", hint=f"--{more[0]} …"
        )
    return f"{target}{colon}n{shape.get('nodes', 1)}_gpu{shape.get('gpus', 0)}"
