"""A model made ready: on its device, recomputing if wanted, one of several replicas or shards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gflow.errors import UsageError, unknown
from gflow.ml.train.ranks import Ranks

STRATEGIES = ("auto", "ddp", "fsdp", "none")


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The layers that repeat: members of lists of modules, the outermost ones."""
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        elif isinstance(child, nn.Sequential) and len(child) > 1:
            yield from (one for one in child if any(True for _ in one.parameters()))
        else:
            yield from blocks(child)


def recompute(model: nn.Module) -> None:
    """Gradient checkpointing: layers that repeat keep their inputs alone, and are computed twice."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return
    found = list(blocks(model))
    if not found:
        raise UsageError(
            "this model has no list of layers to recompute",
            hint="use torch.utils.checkpoint inside of it; gradient_checkpointing=False here",
        )
    for block in found:
        # On the instance: names in the state dict stay as they are.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def spread(
    model: nn.Module, strategy: str, ranks: Ranks, device: torch.device, dtype: torch.dtype | None
) -> nn.Module:
    """One of several replicas (DDP) or shards (FSDP), by what the run has."""
    if strategy not in STRATEGIES:
        raise unknown("strategy", strategy, STRATEGIES)
    if ranks.world == 1 or strategy == "none":
        return model
    if strategy == "fsdp":
        return _shard(model, device, dtype)
    from torch.nn.parallel import DistributedDataParallel

    if device.type == "cuda":
        return DistributedDataParallel(model, device_ids=[device.index])
    # After the first step DDP packs gradients anew, in the order in which they came, and sums differ in
    # their last bits: a resumed run would not be the run that went through. Looking for unused
    # parameters makes it pack once.
    warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
    return DistributedDataParallel(model, find_unused_parameters=True)


def _shard(model: nn.Module, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for block in blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def bare(model: nn.Module) -> nn.Module:
    """The model itself, without DDP around it."""
    inner = getattr(model, "module", None)
    return (
        inner if isinstance(inner, nn.Module) and type(model).__name__ == "DistributedDataParallel" else model
    )


def is_sharded(model: nn.Module) -> bool:
    return hasattr(model, "set_requires_gradient_sync")


def exchange_gradients(model: nn.Module, on: bool) -> None:
    """Whether the next backward pass talks to the other ranks: only the last one of a step has to."""
    wrapped: Any = model
    if is_sharded(model):
        wrapped.set_requires_gradient_sync(on)
    elif bare(model) is not model:
        wrapped.require_backward_grad_sync = on
