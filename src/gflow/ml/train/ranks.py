"""The processes of one run: which of them this is, and how they agree."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gflow.errors import GflowError

# Whoever waits longer than this for the others gives up: one of them is gone or stuck.
TIMEOUT_S = 600


class Ranks:
    """One process of a run started by `gflow launch` or torchrun, or the only one."""

    def __init__(self, device: torch.device, timeout_s: float = TIMEOUT_S) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self._began = False
        self._wish: tuple[Any, torch.Tensor] | None = None
        # On the CPU, so that agreeing never waits for the GPU; another one for threads that save.
        self.control: Any = None
        self.saving: Any = None
        if self.world > 1:
            self._join(device, timedelta(seconds=timeout_s))

    def _join(self, device: torch.device, timeout: timedelta) -> None:
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(
                backend, timeout=timeout, device_id=device if device.type == "cuda" else None
            )
            self._began = True
        self.control = dist.new_group(backend="gloo", timeout=timeout)
        self.saving = dist.new_group(backend="gloo", timeout=timeout)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def agree(self, wish: int) -> int:
        """The largest wish of any rank when this was called last: the same answer on all of them.

        The question goes round while the next step is computed, so that nobody waits for the answer.
        """
        if self.world == 1:
            return wish
        answer = 0
        if self._wish is not None:
            work, tensor = self._wish
            work.wait()
            answer = int(tensor.item())
        tensor = torch.tensor([wish])
        self._wish = (dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.control, async_op=True), tensor)
        return answer

    def tell(self, value: Any) -> Any:
        """The first rank's value, on all."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def settle(self, value: Any, error: GflowError | None) -> Any:
        """The first rank's value on all ranks, or its error on all."""
        value, message, hint = self.tell((value, error and error.message, error.hint if error else ""))
        if error is not None:
            raise error
        if message is not None:
            raise GflowError(message, hint=hint)
        return value

    def close(self, *, failed: bool = False) -> None:
        """Leave the groups that were made here. Who failed does not wait for the others."""
        if self._wish is not None and not failed:
            self._wish[0].wait()
        self._wish = None
        if self.control is not None and not failed and dist.is_initialized():
            self._leave()

    def _leave(self) -> None:
        """A group that nobody holds any more waits for its threads. They need Python to let go of their last
        tensor: where Python ended before, the process is aborted and its exit code lost.
        """
        if self._began:
            dist.destroy_process_group()
        else:
            dist.destroy_process_group(self.control)
            dist.destroy_process_group(self.saving)
        self.control = self.saving = None
