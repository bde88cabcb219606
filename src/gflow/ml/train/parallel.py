"""Gradient checkpointing, DDP and FSDP for a model."""

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
    """Yield the repeated layers: members of the outermost lists of modules."""
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        elif isinstance(child, nn.Sequential) and len(child) > 1:
            yield from (one for one in child if any(True for _ in one.parameters()))
        else:
            yield from blocks(child)


def recompute(model: nn.Module) -> None:
    """Enable gradient checkpointing: repeated layers keep only their inputs and are computed twice."""
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


def parallelize(
    model: nn.Module, strategy: str, ranks: Ranks, device: torch.device, dtype: torch.dtype | None
) -> nn.Module:
    """Wrap the model as a replica (DDP) or a shard (FSDP); unchanged with a single rank."""
    if strategy not in STRATEGIES:
        raise unknown("strategy", strategy, STRATEGIES)
    is_trained = any(one.requires_grad for one in model.parameters())
    if ranks.world == 1 or strategy == "none" or not (is_trained or strategy == "fsdp"):
        return model
    if strategy == "fsdp":
        return _shard(model, device, dtype)
    from torch.nn.parallel import DistributedDataParallel

    if device.type == "cuda":
        return DistributedDataParallel(model, device_ids=[device.index])
    # After the first step DDP rebuilds its buckets in the order in which gradients arrived, and sums differ
    # in their last bits: a resumed run would differ from an uninterrupted one. With find_unused_parameters
    # DDP does not rebuild them.
    warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
    return DistributedDataParallel(model, find_unused_parameters=True)


def _shard(model: nn.Module, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # Each rank has its own random numbers, and would shard its own weights. DDP copies those of rank 0 too.
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            torch.distributed.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for block in blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model without its DDP wrapper."""
    inner = getattr(model, "module", None)
    return (
        inner if isinstance(inner, nn.Module) and type(model).__name__ == "DistributedDataParallel" else model
    )


def is_sharded(model: nn.Module) -> bool:
    return hasattr(model, "set_requires_gradient_sync")


def exchange_gradients(model: nn.Module, on: bool) -> None:
    """Turn gradient synchronisation of the next backward pass on or off: only the last of a step needs it."""
    wrapped: Any = model
    if is_sharded(model):
        wrapped.set_requires_gradient_sync(on)
    elif unwrap(model) is not model:
        wrapped.require_backward_grad_sync = on
