"""Real models on the CPU, without the cost of their weights; then moved to the device made of nothing.

Models are built for real and not on the device: some read their own numbers while they are built. What fills
the weights is switched off, so the pages behind them are never touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from gflow.ml.fit.cuda.patching import patched


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Weights are made and not filled."""
    with contextlib.ExitStack() as stack:
        for name in dir(nn.init):
            if name.endswith("_") and not name.startswith("_") and callable(getattr(nn.init, name)):
                stack.enter_context(patched(nn.init, name, _untouched))
        for owner in _pretrained():
            for name in ("_initialize_weights", "initialize_weights", "_init_weights"):
                if hasattr(owner, name):
                    stack.enter_context(patched(owner, name, lambda *_, **__: None))
        yield


def _untouched(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


def _pretrained() -> list[Any]:
    import sys

    if "transformers" not in sys.modules:
        return []
    from gflow.ml.fit.models.lazy_torch import load_torchvision

    load_torchvision()
    from transformers.modeling_utils import PreTrainedModel

    return [PreTrainedModel]


def to_device(model: Any, *, channels_last: bool = False) -> Any:
    """The model with its weights on the device that is switched on, in the order of `Module.to`.

    Weights that are one and the same stay one. Recurrent layers lay theirs into one stretch, as on a GPU.
    """
    moved: dict[int, tuple[Any, Any]] = {}

    def move(tensor: Any) -> Any:
        if id(tensor) not in moved:
            made = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=torch.device("cuda", 0)
            )
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            moved[id(tensor)] = (tensor, made)
        return moved[id(tensor)][1]

    _each(model, move)
    if channels_last:
        moved.clear()
        _each(model, lambda tensor: _channels_last(tensor, moved))
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            _flatten(module)
    return model


def _each(module: Any, change: Any) -> None:
    """Children first, then parameters, then buffers: the order in which `Module.to` moves."""
    for child in module.children():
        _each(child, change)
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor is not None:
                tensors[name] = change(tensor)


def _channels_last(tensor: Any, moved: dict[int, tuple[Any, Any]]) -> Any:
    if tensor.dim() != 4:
        return tensor
    if id(tensor) not in moved:
        made = tensor.detach().to(memory_format=torch.channels_last)
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.requires_grad)
        moved[id(tensor)] = (tensor, made)
    return moved[id(tensor)][1]


def _flatten(module: Any) -> None:
    names = [name for names in module._all_weights for name in names]
    weights = [module._parameters[name] for name in names]
    flat = torch.empty(
        sum(weight.numel() for weight in weights), dtype=weights[0].dtype, device=torch.device("cuda", 0)
    )
    at = 0
    for name, weight in zip(names, weights, strict=True):
        view = flat[at : at + weight.numel()].view(weight.shape)
        module._parameters[name] = nn.Parameter(view, requires_grad=weight.requires_grad)
        at += weight.numel()
    module._flat_weights = [module._parameters[name] for name in names]
