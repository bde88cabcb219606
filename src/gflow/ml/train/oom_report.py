"""The report of a run that lacks GPU memory: how much of it does not depend on the batch, for `gjob why`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from gflow.ml.train.checkpoint.run_state import RunState

GIB = 1 << 30


def report_oom(state: RunState, batch: Callable[[], int]) -> None:
    """Print the line if the run ends for lack of GPU memory. `batch`: samples in a batch; 0: unknown."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if issubclass(kind, torch.OutOfMemoryError) and batch():
            sys.stderr.write(oom_line(batch(), fixed_bytes(state)))

    sys.excepthook = hook


def oom_line(batch: int, fixed: int) -> str:
    size = f"{fixed / GIB:.2f} GiB"
    return f"gflow.train: out of GPU memory with a batch of {batch}; {size} do not depend on it\n"


def fixed_bytes(state: RunState) -> int:
    """Bytes of weights, gradients and optimizer states on this rank, as they are after the first step."""
    weights = list(state.parameters())
    gradients = sum(_bytes(one) for one in weights if one.requires_grad)
    states = sum(_state_bytes(one, gradients) for one in state.optimizers)
    return sum(map(_bytes, weights)) + gradients + states


def _state_bytes(optimizer: torch.optim.Optimizer, trainable: int) -> int:
    """Bytes of its states; before its first step, as many as its kind makes."""
    if optimizer.state:
        return sum(map(_bytes, _tensors(optimizer)))
    if "betas" in optimizer.defaults:  # two moments, as Adam has
        return 2 * trainable
    return trainable if optimizer.defaults.get("momentum") else 0


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for values in optimizer.state.values():
        yield from (one for one in values.values() if isinstance(one, torch.Tensor) and one.is_cuda)


def _bytes(tensor: Any) -> int:
    """Bytes on this rank; of a sharded tensor, those of its part."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.numel() * local.element_size())
