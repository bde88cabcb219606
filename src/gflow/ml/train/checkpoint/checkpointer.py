"""Checkpoints of PyTorch state: written atomically in the background, loaded without running code.

The first rank writes the state that all ranks share. Each rank writes its own state, and its part of a
sharded (FSDP) model. `checkpoint_dir` commits them as one checkpoint.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from gflow.errors import GflowError
from gflow.ml.train.checkpoint import disk
from gflow.ml.train.checkpoint.checkpoint_dir import (
    CheckpointDirectory,
    CheckpointError,
    Saved,
    Superseded,
    checksum,
    read_manifest,
    verify,
)
from gflow.ml.train.checkpoint.cpu_copy import CpuCopies, copy_shards
from gflow.ml.train.checkpoint.remote_dir import open_directory
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
        self._about: dict[str, Any] = {}
        self._saved: Saved | None = None
        self.directory = directory or open_directory(folder, keep=keep)
        # Duration of the slowest save, from the copy to the rename.
        self.slowest_s = 0.0
        error = None
        try:
            if self._ranks.is_first:
                self.directory.claim()
        except GflowError as refusal:
            error = refusal
        # All ranks use the first rank's token: they write into the same directory. The step of the newest
        # checkpoint that was there before this run.
        self.directory.owner, self.found_step = self._ranks.broadcast_or_raise(
            (self.directory.owner, self.directory.newest_step()), error
        )

    # ------------------------------------------------------------ saving

    def save(
        self,
        step: int,
        state: dict[str, Any],
        mine: dict[str, Any] | None = None,
        *,
        sharded: dict[str, Any] | None = None,
        about: dict[str, Any] | None = None,
        wait: bool = False,
    ) -> None:
        """Save a checkpoint. The arguments may be modified as soon as this returns.

        An error of the previous background save was printed when it happened, and does not prevent this one.
        `state` is taken from the first rank; `sharded` has tensors of which each rank holds a part.
        `about` is added to the manifest; `score` in it is for `keep_best`.
        """
        self.join()
        self._error, self._about = None, about or {}
        begun = time.monotonic()
        parts = {f"rank-{self._ranks.rank}.pt": mine} if mine is not None else {}
        if self._ranks.is_first:
            parts[STATE] = state
        refusal = None
        try:
            parts = self._copies.take(parts)
        except GflowError as error:
            refusal = error
        path = self._begin(step, refusal)
        shards = None if sharded is None else copy_shards(sharded)
        work = self._work(path, step, parts, shards, begun)
        if self._background and not wait:
            self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
            self._thread.start()
        else:
            work()
            self.wait()

    def wait(self) -> Saved | None:
        """Wait for the save in progress and return the last checkpoint. Raises the error of the last save."""
        self.join()
        if self._error is not None:
            error, self._error = self._error, None
            if isinstance(error, GflowError):
                raise error
            raise CheckpointError(f"no checkpoint in {self.directory.folder}: {error}") from error
        return self._saved

    def join(self) -> bool:
        """Wait for the save in progress. Return whether the last save failed: the same on all ranks."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._error is not None

    def close(self, *, failed: bool = False) -> None:
        """Wait for the save in progress, release the directory, and leave the ranks if joined here.

        A run that failed does not wait: the other ranks may be gone.
        """
        try:
            if not failed:
                self.wait()
        finally:
            self.directory.drop_fetched()
            if self._ranks.is_first:
                self.directory.release()
            if self._own_ranks:
                self._ranks.close(failed=failed)

    def _begin(self, step: int, error: GflowError | None) -> str:
        path = ""
        if self._ranks.is_first and error is None:
            try:
                path = self.directory.begin(step)
            except GflowError as refusal:
                error = refusal
            except OSError as trouble:
                error = CheckpointError(
                    f"no checkpoint in {self.directory.folder}: {trouble.strerror or trouble}"
                )
        path = self._ranks.broadcast_or_raise(path, error)
        return str(path)

    def _work(
        self, path: str, step: int, parts: dict[str, Any], shards: dict[str, Any] | None, begun: float
    ) -> Callable[[], None]:
        """Return the part of a save that follows the copy; it runs in a background thread."""

        def work() -> None:
            trouble = ""
            files: Files = {}
            try:
                if shards is not None:
                    files |= self._write_shards(path, shards)
                folder = self.directory.folder_to_write(path)
                for name, content in parts.items():
                    files[name] = write(os.path.join(folder, name), content)
                self.directory.upload(path, files)
            except (Exception, CheckpointException) as error:
                # Reported to the other ranks in _finish.
                cause = _own_cause(error, self._ranks.rank)
                trouble = f"rank {self._ranks.rank}: {cause}" if cause else ""
            finally:
                self.directory.drop_written(path)
            try:
                self._saved = self._finish(path, step, files, trouble)
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            except BaseException as error:
                self._error = error
                if threading.current_thread() is not threading.main_thread():
                    self._warn(error)

        return work

    def _warn(self, error: BaseException) -> None:
        """Print the error of a background save. `Superseded` is raised by the next save instead."""
        if self._ranks.is_first and not isinstance(error, Superseded):
            _say(f"{error}; training goes on")

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
                about = {"world": self._ranks.world, **self._about}
                saved = self.directory.commit(path, step, everything, about)
            except Exception as failure:  # any: the other ranks wait for its text
                self.directory.abandon(path)
                is_plain = isinstance(failure, GflowError)
                error = failure if is_plain else CheckpointError(f"no checkpoint of step {step}: {failure}")
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

        from gflow.ml.train.checkpoint.shard_writer import ShardWriter

        def shards() -> str:
            return os.path.join(self.directory.folder_to_write(path), SHARDS)

        # In the group of the saving threads: training goes on in the others.
        dcp.save(sharded, storage_writer=ShardWriter(shards), process_group=self._ranks.saving)
        folder = shards()
        mine = f"__{self._ranks.rank}_"
        names = [
            name
            for name in os.listdir(folder)
            if name.startswith(mine) or (self._ranks.is_first and not name.startswith("__"))
        ]
        return {f"{SHARDS}/{name}": checksum(os.path.join(folder, name)) for name in names}

    # ------------------------------------------------------------ loading

    def load(self) -> Loaded | None:
        """Load the newest complete checkpoint; None if there are no checkpoints.

        Raises an error if there are some and all are damaged: training must not begin again unnoticed.
        """
        found = self._newest()
        if found is None:
            return None
        path, step = found
        folder = self.directory.folder_to_read(path)
        own = os.path.join(folder, f"rank-{self._ranks.rank}.pt")
        return Loaded(
            folder,
            step,
            int(read_manifest(folder).get("world", 1)),
            read(os.path.join(folder, STATE)),
            read(own) if os.path.exists(own) else None,
        )

    def _newest(self) -> tuple[str, int] | None:
        """Return path and step of the newest checkpoint that is intact."""
        candidates = self._ranks.broadcast([(saved.path, saved.step) for saved in self.directory.saved()])
        for path, step in candidates:
            trouble = self._trouble_in(path)
            if not trouble:
                return path, step
            self.directory.damaged.add(path)
            if self._ranks.is_first:
                _say(trouble)
        if candidates:
            raise CheckpointError(
                f"no checkpoint in {self.directory.folder} is intact",
                hint="restore the files, or move the folder away to train from the beginning",
            )
        return None

    def _trouble_in(self, path: str) -> str:
        """Verify a checkpoint, a share of its files on each rank. Return its first error; empty: none."""
        troubles = [""]

        def check() -> Iterator[None]:
            try:
                yield from self.directory.fetch(path, self._ranks.rank, self._ranks.world)
            except CheckpointError as error:
                troubles.insert(0, error.message)

        self._ranks.finish_together(check())
        return next(filter(None, self._ranks.gather(troubles[0])), "")

    def drop_fetched(self) -> None:
        """Remove local copies of a remote checkpoint when all ranks have loaded it."""
        self._ranks.is_any(False)
        self.directory.drop_fetched()

    def load_shards(self, path: str, sharded: dict[str, Any]) -> None:
        """Fill the tensors of `sharded` in place."""
        import torch.distributed.checkpoint as dcp

        folder = os.path.join(path, SHARDS)
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(sharded, checkpoint_id=folder, no_dist=self._ranks.world == 1)


def _own_cause(error: BaseException, rank: int) -> BaseException | None:
    """Return the error of this rank, if PyTorch has gathered those of all; None if only others failed."""
    if not isinstance(error, CheckpointException):
        return error
    return next((one for failed, (one, _) in error.failures.items() if failed == rank), None)


def write(path: str, content: Any) -> tuple[int, str]:
    """Write and sync a file. Return its size and checksum."""
    file = disk.File(path)
    try:
        torch.save(content, file)
    except BaseException as error:
        file.drop()
        raise file.error or error from None
    file.close()
    return file.size, file.checksum


def read(path: str) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _say(text: str) -> None:
    import sys

    sys.stderr.write(f"gflow: {text}\n")


__all__ = ["CheckpointError", "Checkpointer", "Loaded", "Saved", "verify"]
