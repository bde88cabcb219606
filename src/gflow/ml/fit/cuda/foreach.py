"""Foreach operators (one operator on a list of tensors), as optimizers use them.

For PyTorch's fake tensors they are slow, a third of a run's time: each of hundreds of arguments is looked up
in a table. Their effect on memory is simple: none, or one result like each argument.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

# Operators that return one result like each tensor of their first argument.
LIKE = {"add", "sub", "mul", "div", "sqrt", "rsqrt", "neg", "abs", "exp", "lerp", "addcmul", "addcdiv", "pow",
        "reciprocal", "maximum", "minimum", "clamp_min", "clamp_max", "sign"}  # fmt: skip


@cache
def role(func: Any) -> str:
    """Return `in place`, `like`, or an empty string for operators that are not handled here."""
    space, _, name = func._schema.name.partition("::")
    if space != "aten" or not name.startswith("_foreach_"):
        return ""
    word = name.removeprefix("_foreach_")
    if word.endswith("_"):
        return "in place"
    return "like" if word in LIKE else ""


def run(mode: Any, func: Any, args: Any) -> Any:
    """Return the results; None for in-place operators; NotImplemented if the operator is not handled here."""
    kind = role(func)
    first = args[0]
    # Step counters are on the host and have values.
    if not kind or any(tensor.device.type != "cuda" for tensor in first):
        return NotImplemented
    if kind == "in place":
        return None
    others = args[1] if len(args) > 1 else ()
    types = {tensor.dtype for tensor in first}
    if isinstance(others, torch.Tensor):
        others = (others,)
    if isinstance(others, list | tuple):
        types |= {tensor.dtype for tensor in others if isinstance(tensor, torch.Tensor) and tensor.dim()}
    if len(types) != 1 or not next(iter(types)).is_floating_point:
        return NotImplemented
    return [_like(mode, tensor) for tensor in first]


def _like(mode: Any, tensor: Any) -> Any:
    with in_kernel_invocation_manager(mode):
        empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    return FakeTensor(mode, empty, tensor.device)
