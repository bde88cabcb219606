"""Gradient checkpointing, DDP and FSDP for a model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gflow.errors import UsageError, unknown
from gflow.ml.train.ranks import Ranks

STRATEGIES = ("auto", "ddp", "fsdp", "none")


# Classes of modules.
Layers = type[nn.Module] | Sequence[type[nn.Module]]


def blocks(model: nn.Module, layers: Layers | None = None) -> Iterator[nn.Module]:
    """Yield the repeated layers: the outermost modules of the classes `layers`, or, without them, members of
    the outermost lists of modules.
    """
    if layers is not None:
        yield from _instances(model, layers if isinstance(layers, type) else tuple(layers))
        return
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        elif isinstance(child, nn.Sequential) and len(child) > 1:
            yield from (one for one in child if any(True for _ in one.parameters()))
        else:
            yield from blocks(child)


def _instances(
    model: nn.Module, layers: type[nn.Module] | tuple[type[nn.Module], ...]
) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, layers):
            yield child
        else:
            yield from _instances(child, layers)


def check_layers(model: nn.Module, layers: Layers | None) -> None:
    """Refuse classes of which the model has no module: nothing would be sharded or recomputed by layers."""
    if layers is not None and not any(True for _ in blocks(model, layers)):
        names = [one.__name__ for one in ([layers] if isinstance(layers, type) else layers)]
        raise UsageError(
            f"the model has no {' or '.join(names) or 'layers'}", hint="print(model) shows its classes"
        )


def check_offload(offload: bool, strategy: str, precision: str, is_on_cpu: bool, world: int) -> bool:
    """Return whether weights and optimizer states are kept in CPU memory; refuse what would not do so."""
    if not offload:
        return False
    if strategy != "fsdp":
        raise UsageError("offload=True needs FSDP", hint='Run(strategy="fsdp", offload=True)')
    if precision == "fp16":
        raise UsageError(
            "offload=True does not go with fp16: its gradient scaler works on the GPU",
            hint='precision="bf16"',
        )
    if world == 1 and not is_on_cpu:
        raise UsageError(
            "offload=True needs several processes: a single one does not shard", hint="gflow launch train.py"
        )
    return world > 1


def recompute(model: nn.Module, layers: Layers | None = None) -> None:
    """Enable gradient checkpointing: repeated layers keep only their inputs and are computed twice."""
    if layers is None and hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return
    found = list(blocks(model, layers))
    if not found:
        raise UsageError(
            "this model has no list of layers to recompute",
            hint="name their classes: run.model(net, layers=(Block,))",
        )
    for block in found:
        # On the instance: names in the state dict stay as they are.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def parallelize(
    model: nn.Module,
    strategy: str,
    ranks: Ranks,
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    layers: Layers | None = None,
    offload: bool = False,
) -> nn.Module:
    """Wrap the model as a replica (DDP) or a shard (FSDP); unchanged with a single rank."""
    if strategy not in STRATEGIES:
        raise unknown("strategy", strategy, STRATEGIES)
    is_trained = any(one.requires_grad for one in model.parameters())
    if ranks.world == 1 or strategy == "none" or not (is_trained or strategy == "fsdp"):
        return model
    if strategy == "fsdp":
        return _shard(model, device, dtype, layers, offload)
    from torch.nn.parallel import DistributedDataParallel

    if device.type != "cpu":
        return DistributedDataParallel(model, device_ids=[device.index])
    # After the first step DDP rebuilds its buckets in the order in which gradients arrived, and sums differ
    # in their last bits: a resumed run would differ from an uninterrupted one. With find_unused_parameters
    # DDP does not rebuild them.
    _take_warning_of_ddp()
    return DistributedDataParallel(model, find_unused_parameters=True)


@cache
def _take_warning_of_ddp() -> None:
    """Have DDP warn now of a model without unused parameters: it warns once, then not of the user's model.

    The warning comes from C++. Only below an autograd function of Python does PyTorch hand it to `warnings`.
    """
    from torch.nn.parallel import DistributedDataParallel

    class Forward(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, model: nn.Module) -> torch.Tensor:
            with torch.enable_grad():
                model(x)
            return x.clone()

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
        model = DistributedDataParallel(nn.Linear(1, 1), find_unused_parameters=True)
        Forward.apply(torch.zeros(1, 1), model)


def _shard(
    model: nn.Module, device: torch.device, dtype: torch.dtype | None, layers: Layers | None, offload: bool
) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    # Each rank has its own random numbers, and would shard its own weights. DDP copies those of rank 0 too.
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            torch.distributed.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    place = CPUOffloadPolicy(pin_memory=device.type != "cpu") if offload else OffloadPolicy()
    for module in (*blocks(model, layers), model):
        fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=place)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model without its DDP wrapper."""
    inner = getattr(model, "module", None)
    return (
        inner if isinstance(inner, nn.Module) and type(model).__name__ == "DistributedDataParallel" else model
    )


def original(model: nn.Module) -> nn.Module:
    """Return the module that the script made: without DDP and torch.compile, in any order."""
    inner = getattr(model, "_orig_mod", unwrap(model))
    return model if inner is model else original(inner)


def is_sharded(model: nn.Module) -> bool:
    return hasattr(model, "set_requires_gradient_sync")


def is_sharded_tensor(value: object) -> bool:
    """Whether it is a DTensor, without an import of what few programs need."""
    return isinstance(value, torch.Tensor) and hasattr(value, "placements")


def exchange_gradients(model: nn.Module, on: bool) -> None:
    """Turn gradient synchronisation of the next backward pass on or off: only the last of a step needs it."""
    wrapped: Any = model
    if is_sharded(model):
        wrapped.set_requires_gradient_sync(on)
    elif unwrap(model) is not model:
        wrapped.require_backward_grad_sync = on
