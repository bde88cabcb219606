"""Checkpoint directory: checkpoints appear atomically, and only one attempt at a time may add to it.

    checkpoints/
      step-00000500/          a checkpoint: its files, and a manifest with the checksum of each
      step-00001000/
      latest -> step-00001000
      owner.json              the owner: the latest attempt that claimed the directory
      .new-…                  a checkpoint being written, or left by a crash

A checkpoint is written into a directory with a temporary name, synced, and renamed. The rename and the update
of `latest` happen under a lock, and only if the writer still owns the directory: a surviving process of an
earlier attempt cannot overwrite the state of its successor. Nothing here needs PyTorch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from gflow.errors import GflowError
from gflow.ml.train.checkpoint import disk

MANIFEST = "manifest.json"
OWNER = "owner.json"
LATEST = "latest"
_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")


class CheckpointError(GflowError):
    """The checkpoint cannot be used."""

    code = "checkpoint"


class Superseded(CheckpointError):
    """A later attempt owns the checkpoint directory: this attempt must stop writing."""

    code = "superseded"


class Owner(NamedTuple):
    """One process of one attempt of a job. Outside of gflow every run counts as a separate attempt."""

    job: str
    attempt: int
    token: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Owner:
        # Job ids are unique per daemon only; the directory of the run record identifies the daemon.
        job = environ.get("GFLOW_JOB_ID", "")
        folder = os.path.dirname(environ.get("GFLOW_RUN", ""))
        attempt = environ.get("GFLOW_ATTEMPT", "0")
        if not job and environ.get("SLURM_JOB_ID"):
            job, folder = environ["SLURM_JOB_ID"], environ.get("SLURM_CLUSTER_NAME", "slurm")
            attempt = str(int(environ.get("SLURM_RESTART_COUNT", "0")) + 1)
        name = f"{folder}:{job}" if job else ""
        return cls(name, int(attempt) if attempt.isdecimal() else 0, secrets.token_hex(8))


class Saved(NamedTuple):
    """A checkpoint on disk; `verify` checks that it is complete. `again`: earlier saves of the same step."""

    path: str
    step: int
    again: int


class CheckpointDirectory:
    """A checkpoint directory: adds checkpoints and finds them."""

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 3, owner: Owner | None = None) -> None:
        if keep < 1:
            raise CheckpointError(f"keep={keep} would keep no checkpoint", hint="keep=1 keeps the newest")
        self.folder = os.path.abspath(folder)
        self.keep = keep
        self.owner = owner or Owner.of(os.environ)

    # ------------------------------------------------------------ ownership

    def claim(self) -> None:
        """Take ownership of the directory. Fails if a later attempt of the same job owns it."""
        try:
            os.makedirs(self.folder, exist_ok=True)
            with self._lock():
                before = self._read_owner()
                if before and before.job and before.job == self.owner.job:
                    self._refuse_if(before.attempt > self.owner.attempt, before)
                self._write_owner()
        except OSError as error:
            raise CheckpointError(f"no checkpoints in {self.folder}: {error.strerror}") from error

    def check_owner(self) -> None:
        """Raise `Superseded` if another process has claimed the directory."""
        now = self._read_owner()
        self._refuse_if(now != self.owner, now)

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

    def _write_owner(self) -> None:
        path = os.path.join(self.folder, OWNER)
        temporary = f"{path}.{self.owner.token}"
        with suppress(FileNotFoundError):
            disk.remove(temporary)
        _write(temporary, json.dumps(self.owner._asdict()).encode())
        disk.rename(temporary, path)
        disk.sync(self.folder)

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
        manifest = {
            "format": 1,
            "step": step,
            "at": time.time(),
            "job": self.owner.job,
            "attempt": self.owner.attempt,
            **about,
            "files": {name: {"size": size, "sha256": checksum} for name, (size, checksum) in files.items()},
        }
        _write(os.path.join(path, MANIFEST), json.dumps(manifest, indent=1).encode())
        for folder in {os.path.dirname(os.path.join(path, name)) for name in files}:
            disk.sync(folder)
        disk.sync(path)
        with self._lock():
            self.check_owner()
            saved = self._free_name(step)
            disk.rename(path, saved.path)
            disk.sync(self.folder)
            self._point_latest(saved)
            self._tidy(saved)
        return saved

    def abandon(self, path: str) -> None:
        """Remove an unfinished checkpoint to free its disk space."""
        with suppress(OSError):
            _remove_tree(path)

    def _free_name(self, step: int) -> Saved:
        """Choose an unused name: after a resume the same step may be saved again."""
        again = 0
        while True:
            name = f"step-{step:08d}" + (f".{again}" if again else "")
            path = os.path.join(self.folder, name)
            if not os.path.lexists(path):
                return Saved(path, step, again)
            again += 1

    def _point_latest(self, saved: Saved) -> None:
        temporary = os.path.join(self.folder, f".{LATEST}-{self.owner.token}")
        with suppress(FileNotFoundError):
            disk.remove(temporary)
        disk.link(os.path.basename(saved.path), temporary)
        disk.rename(temporary, os.path.join(self.folder, LATEST))
        disk.sync(self.folder)

    def _tidy(self, newest: Saved) -> None:
        """Remove old checkpoints and leftovers of crashes. Renamed first, so that none is left incomplete."""
        others = [saved for saved in self.saved() if saved.path != newest.path]
        for saved in others[self.keep - 1 :]:
            old = os.path.join(self.folder, f".old-{os.path.basename(saved.path)}-{self.owner.token}")
            disk.rename(saved.path, old)
        for name in os.listdir(self.folder):
            ours = name.startswith(".new-") and name.endswith(self.owner.token)
            if name.startswith((".new-", ".old-")) and not ours:
                self.abandon(os.path.join(self.folder, name))

    # ------------------------------------------------------------ finding

    def saved(self) -> list[Saved]:
        """List the checkpoints on disk, the newest first, without verifying them."""
        found = []
        with suppress(FileNotFoundError):
            for name in os.listdir(self.folder):
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
                troubles.append(error.message)
            else:
                return saved, troubles
        return None, troubles


# The former public name in `gflow.train`.
Vault = CheckpointDirectory


def verify(path: str) -> dict[str, Any]:
    """Return the manifest of a checkpoint after checking size and checksum of every file."""
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            manifest: dict[str, Any] = json.load(file)
        for name, entry in manifest["files"].items():
            if checksum(os.path.join(path, name)) != (entry["size"], entry["sha256"]):
                raise CheckpointError(f"{path}: {name} does not match its checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is incomplete: {error}") from error
    return manifest


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
