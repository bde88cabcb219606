"""Checkpoint directory: checkpoints appear atomically, and only one attempt at a time may add to it.

    checkpoints/
      step-00000500/          a checkpoint: its files, and a manifest with the checksum of each
      step-00001000/
      latest -> step-00001000
      best -> step-00000500   the one with the highest score, if scores are given
      owner.json              the owner: the latest attempt that claimed the directory
      .new-…                  a checkpoint being written, or left by a crash

A checkpoint is written into a directory with a temporary name, synced, and renamed. The rename and the update
of `latest` happen under a lock, and only if the writer still owns the directory: a surviving process of an
earlier attempt cannot overwrite the state of its successor. A second run is refused while the first one is
alive. Nothing here needs PyTorch.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from gflow.errors import GflowError
from gflow.ml.train.checkpoint import disk
from gflow.ml.train.checkpoint.folder_owner import Owner

MANIFEST = "manifest.json"
OWNER = "owner.json"
LATEST, BEST = "latest", "best"
# Bytes that are read at once to verify a file.
CHUNK = 16 << 20
_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")


class CheckpointError(GflowError):
    """The checkpoint cannot be used."""

    code = "checkpoint"


class Superseded(CheckpointError):
    """A later attempt owns the checkpoint directory: this attempt must stop writing."""

    code = "superseded"


class Saved(NamedTuple):
    """A checkpoint on disk; `verify` checks that it is complete. `again`: earlier saves of the same step."""

    path: str
    step: int
    again: int


class CheckpointDirectory:
    """A checkpoint directory: adds checkpoints and finds them."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        keep_best: int = 0,
        owner: Owner | None = None,
    ) -> None:
        """`keep`: how many of the newest checkpoints are kept; `keep_best`: of those with the best score."""
        if keep < 1:
            raise CheckpointError(f"keep={keep} would keep no checkpoint", hint="keep=1 keeps the newest")
        self.folder = self._full_name(os.fspath(folder))
        self.keep, self.keep_best = keep, keep_best
        self.owner = owner or Owner.of(os.environ)
        # Checkpoints that failed verification. They do not count as kept.
        self.damaged: set[str] = set()

    @staticmethod
    def _full_name(folder: str) -> str:
        return os.path.abspath(folder)

    # ------------------------------------------------------------ ownership

    def claim(self) -> None:
        """Take ownership of the directory.

        Fails if a later attempt of the same job owns it, or another run that is alive on this machine.
        """
        try:
            self._make_folder()
            with self._lock():
                before = self._read_owner()
                if before is not None:
                    self._yield_to(before)
                self._write_owner(self.owner)
        except OSError as error:
            raise CheckpointError(f"no checkpoints in {self.folder}: {error.strerror or error}") from error

    def release(self) -> None:
        """Record that this run has closed the directory, so that another one may claim it."""
        with suppress(OSError), self._lock():
            if self._is_owner(self._read_owner()):
                self._write_owner(self.owner._replace(process=""))

    def check_owner(self) -> None:
        """Raise `Superseded` if another process has claimed the directory."""
        now = self._read_owner()
        self._refuse_if(not self._is_owner(now), now)

    def _is_owner(self, now: Owner | None) -> bool:
        return now is not None and now.token == self.owner.token

    def _yield_to(self, before: Owner) -> None:
        """Raise an error if the directory must be left to `before`."""
        is_same_job = bool(before.job) and before.job == self.owner.job
        if is_same_job and before.attempt != self.owner.attempt:
            self._refuse_if(before.attempt > self.owner.attempt, before)
        elif before.is_running_elsewhere():
            raise CheckpointError(
                f"another run, process {before.pid}, is writing checkpoints to {self.folder}",
                hint=f"give this run a folder of its own, or stop the other one: kill {before.pid}",
            )

    def _refuse_if(self, is_stale: bool, now: Owner | None) -> None:
        if is_stale:
            who = f"attempt {now.attempt} of the job" if now and now.job else "another run"
            raise Superseded(
                f"{who} has taken over {self.folder}: this run must stop writing",
                hint="give every run a folder of its own",
            )

    def _read_owner(self) -> Owner | None:
        try:
            with open(os.path.join(self.folder, OWNER), encoding="utf-8") as file:
                return Owner(**json.load(file))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):  # torn by a power failure: no owner until the next claim
            return None

    def _write_owner(self, owner: Owner) -> None:
        path = os.path.join(self.folder, OWNER)
        temporary = f"{path}.{self.owner.token}"
        with suppress(FileNotFoundError):
            disk.remove(temporary)
        _write(temporary, json.dumps(owner._asdict()).encode())
        disk.rename(temporary, path)
        disk.sync(self.folder)

    def _make_folder(self) -> None:
        os.makedirs(self.folder, exist_ok=True)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        fd = os.open(os.path.join(self.folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    # ------------------------------------------------------------ adding

    def begin(self, step: int) -> str:
        """Create the temporary directory for the files of a checkpoint."""
        self.check_owner()
        path = os.path.join(self.folder, f".new-{step:08d}-{self.owner.token}")
        if os.path.lexists(path):  # left by a failed save of this process
            _remove_tree(path)
        disk.make_folder(path)
        return path

    def commit(
        self, path: str, step: int, files: Mapping[str, tuple[int, str]], about: Mapping[str, Any]
    ) -> Saved:
        """Make a directory from `begin` the newest checkpoint. `files`: size and checksum of each."""
        self.check_owner()
        _write(os.path.join(path, MANIFEST), self._manifest(step, files, about))
        for folder in {os.path.dirname(os.path.join(path, name)) for name in files}:
            disk.sync(folder)
        disk.sync(path)
        with self._lock():
            self.check_owner()
            saved = self._free_name(step)
            disk.rename(path, saved.path)
            disk.sync(self.folder)
            self._point(LATEST, saved)
            best = self._best()
            if best:
                self._point(BEST, best[0])
            self._tidy(saved, {one.path for one in best})
        return saved

    def _manifest(self, step: int, files: Mapping[str, tuple[int, str]], about: Mapping[str, Any]) -> bytes:
        manifest = {
            "format": 1,
            "step": step,
            "at": time.time(),
            "job": self.owner.job,
            "attempt": self.owner.attempt,
            **about,
            "files": {name: {"size": size, "sha256": checksum} for name, (size, checksum) in files.items()},
        }
        return json.dumps(manifest, indent=1).encode()

    def abandon(self, path: str) -> None:
        """Remove an unfinished checkpoint to free its disk space."""
        with suppress(OSError):
            _remove_tree(path)

    def _read_manifest(self, path: str) -> dict[str, Any]:
        return read_manifest(path)

    def _free_name(self, step: int) -> Saved:
        """Choose an unused name: after a resume the same step may be saved again."""
        used = self._names()
        for again in itertools.count():
            name = f"step-{step:08d}" + (f".{again}" if again else "")
            if name not in used:
                break
        return Saved(os.path.join(self.folder, name), step, again)

    def _names(self) -> set[str]:
        with suppress(FileNotFoundError):
            return set(os.listdir(self.folder))
        return set()

    def _best(self) -> list[Saved]:
        """Return the checkpoints with the highest scores, the best first, and of equal ones the newest."""
        scores: dict[Saved, Any] = {}
        for saved in self.saved() if self.keep_best else ():
            with suppress(CheckpointError):
                scores[saved] = self._read_manifest(saved.path).get("score")
        scored = [saved for saved, score in scores.items() if isinstance(score, float) and score == score]
        return sorted(scored, key=lambda saved: -scores[saved])[: self.keep_best]

    def _point(self, name: str, saved: Saved) -> None:
        """Make the link `name` point to a checkpoint."""
        temporary = os.path.join(self.folder, f".{name}-{self.owner.token}")
        with suppress(FileNotFoundError):
            disk.remove(temporary)
        disk.link(os.path.basename(saved.path), temporary)
        disk.rename(temporary, os.path.join(self.folder, name))
        disk.sync(self.folder)

    def _tidy(self, newest: Saved, best: Set[str]) -> None:
        """Remove old checkpoints and leftovers of crashes. Renamed first, so that none is left incomplete.

        A damaged checkpoint does not count as kept, and goes when `keep` newer ones are intact.
        """
        kept = 1
        for saved in [saved for saved in self.saved() if saved.path != newest.path]:
            if kept >= self.keep and saved.path not in best:
                old = os.path.join(self.folder, f".old-{os.path.basename(saved.path)}-{self.owner.token}")
                disk.rename(saved.path, old)
            elif saved.path not in self.damaged and kept < self.keep:
                kept += 1
        for name in os.listdir(self.folder):
            ours = name.startswith(".new-") and name.endswith(self.owner.token)
            if name.startswith((".new-", ".old-")) and not ours:
                self.abandon(os.path.join(self.folder, name))

    # ------------------------------------------------------------ files

    # A local directory needs none of these steps: its files are where they belong.

    def folder_to_write(self, path: str) -> str:
        """Return the local folder in which this process writes its files of a checkpoint."""
        return path

    def upload(self, path: str, names: Iterable[str]) -> None:
        """Send the files that this process has written to the checkpoint."""

    def drop_written(self, path: str) -> None:
        """Remove the local copies of the files that this process has written."""

    def fetch(self, path: str, part: int, parts: int) -> Iterator[None]:
        """Make a checkpoint readable in `folder_to_read`, and check every `parts`-th of its files."""
        yield from check_files(path, part, parts)

    def folder_to_read(self, path: str) -> str:
        """Return the local folder with the files of a checkpoint after `fetch`."""
        return path

    def drop_fetched(self) -> None:
        """Remove the local copies that `fetch` made."""

    # ------------------------------------------------------------ finding

    def saved(self) -> list[Saved]:
        """List the checkpoints on disk, the newest first, without verifying them."""
        found = []
        for name in self._names():
            match = _NAME.fullmatch(name)
            if match:
                found.append(Saved(os.path.join(self.folder, name), int(match[1]), int(match[2] or 0)))
        return sorted(found, key=lambda saved: (saved.step, saved.again), reverse=True)

    def newest(self) -> tuple[Saved | None, list[str]]:
        """Return the newest complete checkpoint, and the errors of newer ones."""
        troubles = []
        for saved in self.saved():
            try:
                verify(saved.path)
            except CheckpointError as error:
                self.damaged.add(saved.path)
                troubles.append(error.message)
            else:
                return saved, troubles
        return None, troubles

    def newest_step(self) -> int | None:
        """Return the step of the newest checkpoint without verifying it; None if there is none."""
        return next((saved.step for saved in self.saved()), None)


# The former public name in `gflow.train`.
Vault = CheckpointDirectory


def verify(path: str) -> dict[str, Any]:
    """Return the manifest of a checkpoint after checking size and checksum of every file."""
    for _ in check_files(path):
        pass
    return read_manifest(path)


def read_manifest(path: str) -> dict[str, Any]:
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            manifest: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is incomplete: {error}") from error
    return manifest


def check_files(path: str, part: int = 0, parts: int = 1) -> Iterator[None]:
    """Check size and checksum of every `parts`-th file of a checkpoint. Yields after each `CHUNK`."""
    manifest = read_manifest(path)
    try:
        names = sorted(manifest["files"], key=lambda name: (-manifest["files"][name]["size"], name))
        for name in names[part::parts]:
            entry = manifest["files"][name]
            found = yield from _checksum_in_chunks(os.path.join(path, name))
            if found != (entry["size"], entry["sha256"]):
                raise CheckpointError(f"{path}: {name} does not match its checksum")
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is incomplete: {error}") from error


def _checksum_in_chunks(path: str) -> Generator[None, None, tuple[int, str]]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(CHUNK):
            digest.update(data)
            size += len(data)
            yield
    return size, digest.hexdigest()


def checksum(path: str) -> tuple[int, str]:
    """Size and checksum of a file."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), found


def _write(path: str, data: bytes) -> None:
    file = disk.File(path)
    file.write(data)
    file.close()


def _remove_tree(path: str) -> None:
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            _remove_tree(entry.path)
        else:
            disk.remove(entry.path)
    disk.remove_folder(path)
