"""Writer of the shards of a checkpoint, which reports errors of the disk as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter


class ShardWriter(FileSystemWriter):  # type: ignore[misc]
    """PyTorch's writer. If the disk is full, that one raises an error about the position in the file.

    `folder` is called where an error reaches all ranks: one that left before would leave them waiting.
    """

    def __init__(self, folder: Callable[[], str]) -> None:
        super().__init__("")
        self._folder = folder

    def prepare_local_plan(self, plan: Any) -> Any:
        self.reset(self._folder())
        return super().prepare_local_plan(plan)

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # Raised here, because errors lose their context on the way to the other ranks.
            raise disk_error(error) or error from None


def disk_error(error: BaseException | None) -> OSError | None:
    """Return the error of the disk during whose handling another one was raised."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error
