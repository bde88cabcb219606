"""The ranks of a run: the number of this process, and collective decisions."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from gflow.errors import GflowError, UsageError
from gflow.ml.train.devices import backend_of

# A rank that waits longer than this for the others fails: one of them has died or hangs.
TIMEOUT_S = 300.0
# Writing large files and preparing data take one rank longer than another. A rank that has died ends the wait
# at once, and one that hangs while it saves is noticed by the next step.
LONG_TIMEOUT_S = 86400.0
# `gflow launch --nccl-timeout` sets it, in seconds.
TIMEOUT = "GFLOW_NCCL_TIMEOUT"
# Work of different length on the ranks is divided into slices, so that none waits longer for another.
SLICE_S = 10.0
_END = object()


class Ranks:
    """This process within a run started by `gflow launch` or torchrun; or the only process.

    Scripts read `rank`, `local_rank` (on this node), `world` (number of ranks) and `is_first`.
    """

    def __init__(self, device: torch.device, timeout_s: float | None = None) -> None:
        """`timeout_s`: how long a rank waits for the others; the option of `gflow launch` overrides it."""
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._began = False
        self._request: tuple[Any, torch.Tensor] | None = None
        # CPU process groups: `control` never waits for the GPU, `saving` is for the checkpoint threads, and
        # `preparing`, made when it is needed, for work of one rank that the others wait for.
        self.control: Any = None
        self.saving: Any = None
        self.preparing: Any = None
        self.timeout_s = _timeout_s(timeout_s)
        if self.world > 1:
            self._join(device, timedelta(seconds=self.timeout_s))

    def _join(self, device: torch.device, timeout: timedelta) -> None:
        if not dist.is_initialized():
            dist.init_process_group(
                backend_of(device), timeout=timeout, device_id=None if device.type == "cpu" else device
            )
            self._began = True
        self.control = dist.new_group(backend="gloo", timeout=timeout)
        self.saving = dist.new_group(backend="gloo", timeout=timedelta(seconds=LONG_TIMEOUT_S))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all ranks have called it. It does not wait for work on the GPU."""
        self.is_any(False)

    @contextmanager
    def rank_zero_first(self, *, local: bool = False) -> Iterator[None]:
        """Run a block on the first rank (`local`: of each node) and then on the others: to prepare data once.

        The others wait however long it takes. If it fails, it fails on all ranks.
        """
        is_early = (self.local_rank if local else self.rank) == 0
        if self.world > 1 and self.preparing is None:
            self.preparing = dist.new_group(backend="gloo", timeout=timedelta(seconds=LONG_TIMEOUT_S))
        if not is_early:
            self._meet()
        try:
            yield
        except BaseException:
            if is_early:
                with suppress(RuntimeError):  # another rank has died: this error is the one to see
                    self._meet(failed=True)
            raise
        if is_early:
            self._meet()

    def _meet(self, *, failed: bool = False) -> None:
        """Wait for all ranks, and raise if another one failed before it came."""
        if self.world == 1:
            return
        has_failed = torch.tensor([int(failed)])
        dist.all_reduce(has_failed, dist.ReduceOp.MAX, group=self.preparing)
        if has_failed.item() and not failed:
            raise GflowError(
                "the rank that goes first failed in rank_zero_first", hint="see the error of that rank"
            )

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

    def is_any(self, flag: bool) -> bool:
        """Return whether any rank has a true flag: the same answer on all ranks."""
        if self.world == 1:
            return flag
        tensor = torch.tensor([int(flag)])
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.control)
        return bool(tensor.item())

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of their numbers, on all ranks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def gather_counts(self, counts: tuple[int, ...]) -> list[tuple[int, ...]]:
        """As `gather`, for whole numbers, in one collective."""
        if self.world == 1:
            return [counts]
        mine = torch.tensor(counts)
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine, group=self.control)
        return [tuple(one.tolist()) for one in everyone]

    def finish_together(self, work: Iterator[None]) -> None:
        """Run the iterator of every rank to its end. A rank that is done waits for the others however long
        they work, as long as each of their iterations is shorter than the timeout.
        """
        is_done = False
        while True:
            until = time.monotonic() + min(SLICE_S, self.timeout_s / 4)
            while not is_done and (self.world == 1 or time.monotonic() < until):
                is_done = next(work, _END) is _END
            if not self.is_any(not is_done):
                return

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
            for group in (self.control, self.saving, self.preparing):
                if group is not None:
                    dist.destroy_process_group(group)
        self.control = self.saving = self.preparing = None


def end_after_traceback() -> None:
    """End the process with code 1 directly after the traceback of an uncaught exception.

    A thread that saves, or one of a process group, may be waiting for other ranks. If it goes on while Python
    shuts down, the process aborts, with code 134.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if issubclass(kind, Exception):
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(1)

    sys.excepthook = hook


def _timeout_s(wanted: float | None) -> float:
    given = os.environ.get(TIMEOUT, "")
    if given.isdecimal() and int(given):
        return float(given)
    if wanted is not None and not wanted > 0:
        raise UsageError(f"timeout_s={wanted:g}: it must be above 0")
    return TIMEOUT_S if wanted is None else wanted
