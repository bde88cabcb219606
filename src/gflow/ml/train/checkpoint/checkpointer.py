"""Checkpoints of PyTorch state: written atomically in the background, loaded without running code.

The first rank writes the state that all ranks share. Each rank writes its own state, and its part of a
sharded (FSDP) model. `checkpoint_dir` commits them as one checkpoint.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gflow.errors import GflowError
from gflow.ml.train.checkpoint import disk
from gflow.ml.train.checkpoint.checkpoint_dir import (
    CheckpointDirectory,
    CheckpointError,
    Saved,
    checksum,
    verify,
)
from gflow.ml.train.checkpoint.cpu_copy import CpuCopies
from gflow.ml.train.ranks import Ranks

STATE = "state.pt"
SHARDS = "shards"
Files = dict[str, tuple[int, str]]


class Loaded(NamedTuple):
    """A checkpoint loaded into CPU memory. `mine`: this rank's own state, None if the rank did not exist."""

    path: str
    step: int
    world: int
    state: dict[str, Any]
    mine: dict[str, Any] | None


class Checkpointer:
    """Saves and loads checkpoints in one directory. All ranks call each method together, and `close` last."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        background: bool = True,
        ranks: Ranks | None = None,
        directory: CheckpointDirectory | None = None,
    ) -> None:
        self._ranks = ranks or Ranks(torch.device("cpu"))
        self._own_ranks = ranks is None
        self._background = background
        self._copies = CpuCopies()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._saved: Saved | None = None
        self.directory = directory or CheckpointDirectory(folder, keep=keep)
        # Duration of the slowest save, from the copy to the rename.
        self.slowest_s = 0.0
        error = None
        try:
            if self._ranks.is_first:
                self.directory.claim()
        except GflowError as refusal:
            error = refusal
        # All ranks use the first rank's token: they write into the same directory.
        token = self._ranks.broadcast_or_raise(self.directory.owner, error)
        self.directory.owner = token

    # ------------------------------------------------------------ saving

    def save(
        self,
        step: int,
        state: dict[str, Any],
        mine: dict[str, Any] | None = None,
        *,
        sharded: dict[str, Any] | None = None,
        wait: bool = False,
    ) -> None:
        """Save a checkpoint. The arguments may be modified as soon as this returns.

        An error of the previous background save is raised here. `state` is taken from the first rank;
        `sharded` has tensors of which each rank holds a part.
        """
        self.wait()
        begun = time.monotonic()
        path = self._begin(step)
        files: Files = {}
        if sharded is not None:
            files = self._write_shards(path, sharded)
        parts = {f"rank-{self._ranks.rank}.pt": mine} if mine is not None else {}
        if self._ranks.is_first:
            parts[STATE] = state
        work = self._work(path, step, self._copies.take(parts), files, begun)
        if self._background and not wait:
            self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
            self._thread.start()
        else:
            work()
            self.wait()

    def wait(self) -> Saved | None:
        """Wait for the save in progress and return the last checkpoint. Raises the error of the last save."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            if isinstance(error, GflowError):
                raise error
            raise CheckpointError(f"no checkpoint in {self.directory.folder}: {error}") from error
        return self._saved

    def close(self) -> None:
        """Wait for the save in progress, and leave the group of ranks if it was made here."""
        self.wait()
        if self._own_ranks:
            self._ranks.close()

    def _begin(self, step: int) -> str:
        path = ""
        error: GflowError | None = None
        if self._ranks.is_first:
            try:
                path = self.directory.begin(step)
            except GflowError as refusal:
                error = refusal
            except OSError as trouble:
                error = CheckpointError(f"no checkpoint in {self.directory.folder}: {trouble.strerror}")
        path = self._ranks.broadcast_or_raise(path, error)
        return str(path)

    def _work(
        self, path: str, step: int, parts: dict[str, Any], files: Files, begun: float
    ) -> Callable[[], None]:
        """Return the part of a save that follows the copy; it runs in a background thread."""

        def work() -> None:
            trouble = ""
            try:
                for name, content in parts.items():
                    files[name] = write(os.path.join(path, name), content)
            except (OSError, RuntimeError) as error:  # reported to the other ranks in _finish
                trouble = f"rank {self._ranks.rank}: {error}"
            try:
                self._saved = self._finish(path, step, files, trouble)
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            except BaseException as error:
                self._error = error

        return work

    def _finish(self, path: str, step: int, files: Files, trouble: str) -> Saved:
        """Gather the results of all ranks; the first rank commits the checkpoint, or abandons it on error."""
        saved, everything, troubles = None, dict(files), [trouble]
        if self._ranks.world > 1:
            gathered: list[Any] = [None] * self._ranks.world
            dist.all_gather_object(gathered, (files, trouble), group=self._ranks.saving)
            everything = {name: entry for one, _ in gathered for name, entry in one.items()}
            troubles = [text for _, text in gathered]
        error = None
        if self._ranks.is_first:
            try:
                if any(troubles):
                    self.directory.check_owner()  # the file errors may come from a new owner's clean-up
                    raise CheckpointError(
                        f"no checkpoint of step {step}: {'; '.join(filter(None, troubles))}"
                    )
                saved = self.directory.commit(path, step, everything, {"world": self._ranks.world})
            except (OSError, GflowError) as failure:
                self.directory.abandon(path)
                error = failure
        if self._ranks.world > 1:
            box = [saved, str(error) if error else ""]
            dist.broadcast_object_list(box, src=0, group=self._ranks.saving)
            saved = Saved(*box[0]) if box[0] else None
            if error is None and saved is None:
                raise CheckpointError(str(box[1]))
        if error is not None or saved is None:
            raise error or CheckpointError()
        return saved

    def _write_shards(self, path: str, sharded: dict[str, Any]) -> Files:
        """Write this rank's shards in PyTorch's format, which any number of ranks can load."""
        import torch.distributed.checkpoint as dcp

        folder = os.path.join(path, SHARDS)
        dcp.save(sharded, checkpoint_id=folder)
        mine = f"__{self._ranks.rank}_"
        names = [
            name
            for name in os.listdir(folder)
            if name.startswith(mine) or (self._ranks.is_first and not name.startswith("__"))
        ]
        return {f"{SHARDS}/{name}": checksum(os.path.join(folder, name)) for name in names}

    # ------------------------------------------------------------ loading

    def load(self) -> Loaded | None:
        """Load the newest complete checkpoint; None if there is none."""
        found: tuple[str, int] | None = None
        if self._ranks.is_first:
            saved, troubles = self.directory.newest()
            for trouble in troubles:
                _say(f"{trouble}; taking an older one")
            found = (saved.path, saved.step) if saved else None
        found = self._ranks.broadcast(found)
        if found is None:
            return None
        path, step = found
        own = os.path.join(path, f"rank-{self._ranks.rank}.pt")
        return Loaded(
            path,
            step,
            int(_manifest(path).get("world", 1)),
            read(os.path.join(path, STATE)),
            read(own) if os.path.exists(own) else None,
        )

    def load_shards(self, path: str, sharded: dict[str, Any]) -> None:
        """Fill the tensors of `sharded` in place."""
        import torch.distributed.checkpoint as dcp

        dcp.load(sharded, checkpoint_id=os.path.join(path, SHARDS))


def write(path: str, content: Any) -> tuple[int, str]:
    """Write and sync a file. Return its size and checksum."""
    file = disk.File(path)
    try:
        torch.save(content, file)
    except BaseException:
        file.drop()
        raise
    file.close()
    return file.size, file.checksum


def read(path: str) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _manifest(path: str) -> dict[str, Any]:
    import json

    with open(os.path.join(path, "manifest.json"), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _say(text: str) -> None:
    import sys

    sys.stderr.write(f"gflow: {text}\n")


__all__ = ["CheckpointError", "Checkpointer", "Loaded", "Saved", "verify"]
