"""The ranks of a run: the number of this process, and collective decisions."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gflow.errors import GflowError

# A rank that waits longer than this for the others fails: one of them has died or hangs.
TIMEOUT_S = 600


class Ranks:
    """This process within a run started by `gflow launch` or torchrun; or the only process."""

    def __init__(self, device: torch.device, timeout_s: float = TIMEOUT_S) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self._began = False
        self._request: tuple[Any, torch.Tensor] | None = None
        # CPU process groups: `control` never waits for the GPU, `saving` is for the checkpoint threads.
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

    def agree(self, request: int) -> int:
        """Return the largest request of any rank at the previous call: the same answer on all ranks.

        The all-reduce runs while the next step is computed, so that no rank waits for it.
        """
        if self.world == 1:
            return request
        answer = 0
        if self._request is not None:
            work, tensor = self._request
            work.wait()
            answer = int(tensor.item())
        tensor = torch.tensor([request])
        self._request = (
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.control, async_op=True),
            tensor,
        )
        return answer

    def broadcast(self, value: Any) -> Any:
        """Return the first rank's value on all ranks."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def broadcast_or_raise(self, value: Any, error: GflowError | None) -> Any:
        """Return the first rank's value on all ranks, or raise its error on all."""
        value, message, hint = self.broadcast((value, error and error.message, error.hint if error else ""))
        if error is not None:
            raise error
        if message is not None:
            raise GflowError(message, hint=hint)
        return value

    def close(self, *, failed: bool = False) -> None:
        """Leave the process groups created here. A failed rank does not wait for the others."""
        if self._request is not None and not failed:
            self._request[0].wait()
        self._request = None
        if self.control is not None and not failed and dist.is_initialized():
            self._leave()

    def _leave(self) -> None:
        """Destroy the process groups while Python is alive.

        Their threads need the interpreter to release their last tensors. If it has already ended, the process
        aborts and its exit code is lost.
        """
        if self._began:
            dist.destroy_process_group()
        else:
            dist.destroy_process_group(self.control)
            dist.destroy_process_group(self.saving)
        self.control = self.saving = None
