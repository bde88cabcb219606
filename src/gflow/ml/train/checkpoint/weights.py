"""The weights of a model on their own, for use outside of training: put together from shards, and written."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from gflow.errors import Refused
from gflow.ml.train.checkpoint.remote_dir import file_system, is_remote
from gflow.ml.train.checkpoint.run_state import weights_of
from gflow.ml.train.parallel import is_sharded


def whole_weights(model: nn.Module) -> dict[str, Any]:
    """Return the state dict of a model in CPU memory. With a sharded model, all ranks call it."""
    if is_sharded(model):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return dict(get_model_state_dict(model, options=whole))
    return {name: one.detach().cpu() for name, one in weights_of(model).items()}


def write_weights(path: str, weights: dict[str, Any]) -> None:
    """Write a file, also at a URL, that replaces an earlier one only when it is complete."""
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="gflow-weights-") as folder:
            local = os.path.join(folder, path.rpartition("/")[2])
            write_weights(local, weights)
            file_system(path).put_file(local, path)
        return
    temporary = f"{path}.{os.getpid()}.part"
    try:
        if path.endswith(".safetensors"):
            _write_safetensors(temporary, weights)
        else:
            torch.save(weights, temporary)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _write_safetensors(path: str, weights: dict[str, Any]) -> None:
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError:
        raise Refused(
            "safetensors is not installed", hint="pip install safetensors; or a file name that ends with .pt"
        ) from None
    # The format has no shared tensors: of tied weights the first name is written, as transformers does.
    unique: dict[int, str] = {}
    for name, one in weights.items():
        unique.setdefault(one.data_ptr() or id(one), name)
    save_file({name: weights[name].contiguous() for name in unique.values()}, path, {"format": "pt"})
