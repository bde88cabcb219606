"""Builds models on the CPU with uninitialised weights, then moves them to the fake CUDA device.

Models are built on the CPU because some read their own weights during construction. Initialisation is
disabled, so that the pages of the weights are never touched.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from gflow.ml.fit.cuda.patching import patch


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Disable the initialisation of weights."""
    with contextlib.ExitStack() as stack:
        for name in dir(nn.init):
            if name.endswith("_") and not name.startswith("_") and callable(getattr(nn.init, name)):
                stack.enter_context(patch(nn.init, name, _untouched))
        for owner in _pretrained():
            for name in ("_initialize_weights", "initialize_weights", "_init_weights"):
                if hasattr(owner, name):
                    stack.enter_context(patch(owner, name, lambda *_, **__: None))
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
    """Move the model's weights to the active fake CUDA device, in the order of `Module.to`.

    Tied weights stay tied. Recurrent layers flatten their weights into one allocation, as on a GPU.
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
        counts = Counter(id(one) for _, one in model.named_parameters(remove_duplicate=False))
        _each(model, lambda tensor: _channels_last(tensor, moved, is_tied=counts[id(tensor)] > 1))
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            _flatten(module)
    return model


def _each(module: Any, change: Any) -> None:
    """Apply `change` to children, then parameters, then buffers: the order of `Module.to`."""
    for child in module.children():
        _each(child, change)
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor is not None:
                tensors[name] = change(tensor)


def _channels_last(tensor: Any, moved: dict[int, tuple[Any, Any]], *, is_tied: bool) -> Any:
    """Return the weight with channels last. The original is released at once, as by `Module.to`."""
    if tensor.dim() != 4:
        return tensor
    if is_tied and id(tensor) in moved:
        return moved[id(tensor)][1]
    made = tensor.detach().to(memory_format=torch.channels_last)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=tensor.requires_grad)
    if is_tied:
        moved[id(tensor)] = (tensor, made)
    return made


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
