"""Checkpoint directory in an object store or on a server: `s3://bucket/run`, `gs://…`, any URL of fsspec.

    s3://bucket/run/step-00000500/    the files of a checkpoint, and its manifest, which is written last
    s3://bucket/run/latest, best      texts with the name of a checkpoint
    s3://bucket/run/owner.json        as in a local directory

Object stores have no renames and no locks. A checkpoint exists when its manifest does: an object appears
whole or not at all, and the owner is read directly before. Each rank writes its files to a local temporary
folder (TMPDIR) and uploads them; to resume, the ranks of a node download the files together, and check them
on the way. Nothing here needs PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from gflow.errors import Refused
from gflow.ml.train.checkpoint.checkpoint_dir import (
    BEST,
    CHUNK,
    LATEST,
    MANIFEST,
    OWNER,
    CheckpointDirectory,
    CheckpointError,
    Saved,
)
from gflow.ml.train.checkpoint.folder_owner import Owner

# Packages that fsspec needs for a protocol.
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}


def is_remote(folder: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(folder)


def open_directory(
    folder: str | os.PathLike[str], *, keep: int = 3, keep_best: int = 0
) -> CheckpointDirectory:
    """Open the checkpoint directory at a path or URL."""
    kind = RemoteDirectory if is_remote(folder) else CheckpointDirectory
    return kind(folder, keep=keep, keep_best=keep_best)


class RemoteDirectory(CheckpointDirectory):
    """A checkpoint directory behind a URL."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        keep_best: int = 0,
        owner: Owner | None = None,
    ) -> None:
        super().__init__(folder, keep=keep, keep_best=keep_best, owner=owner)
        self._files = file_system(self.folder)

    @staticmethod
    def _full_name(folder: str) -> str:
        return folder.rstrip("/")

    # ------------------------------------------------------------ ownership

    def _make_folder(self) -> None:
        """Nothing to do: a folder exists as soon as an object has its name."""

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with _plain_errors(self.folder):
            yield

    def _read_owner(self) -> Owner | None:
        try:
            with _plain_errors(self.folder):
                return Owner(**json.loads(self._files.cat_file(f"{self.folder}/{OWNER}")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _write_owner(self, owner: Owner) -> None:
        self._put(OWNER, json.dumps(owner._asdict()).encode())

    # ------------------------------------------------------------ adding

    def begin(self, step: int) -> str:
        self.check_owner()
        return self._free_name(step).path

    def commit(
        self, path: str, step: int, files: Mapping[str, tuple[int, str]], about: Mapping[str, Any]
    ) -> Saved:
        with self._lock():
            self.check_owner()
            name = path.rpartition("/")[2]
            self._put(f"{name}/{MANIFEST}", self._manifest(step, files, about))
            saved = next(one for one in self.saved() if one.path == path)
            self._point(LATEST, saved)
            best = self._best()
            if best:
                self._point(BEST, best[0])
            self._tidy(saved, {one.path for one in best})
        return saved

    def abandon(self, path: str) -> None:
        with suppress(OSError), _plain_errors(path):
            # The manifest goes first: what is left of a checkpoint is none.
            if self._files.exists(f"{path}/{MANIFEST}"):
                self._files.rm_file(f"{path}/{MANIFEST}")
            self._files.rm(path, recursive=True)

    def _point(self, name: str, saved: Saved) -> None:
        self._put(name, saved.path.rpartition("/")[2].encode())

    def _tidy(self, newest: Saved, best: Any) -> None:
        """Remove old checkpoints and those that were not finished."""
        kept, whole = 1, {saved.path for saved in self.saved()}
        for saved in super().saved():
            if saved.path == newest.path:
                continue
            if saved.path not in whole or (kept >= self.keep and saved.path not in best):
                self.abandon(saved.path)
            elif saved.path not in self.damaged and kept < self.keep:
                kept += 1

    def _put(self, name: str, data: bytes) -> None:
        self._make_parent(f"{self.folder}/{name}")
        self._files.pipe_file(f"{self.folder}/{name}", data)

    def _make_parent(self, url: str) -> None:
        """Object stores have no folders; servers have."""
        if self.folder.partition("://")[0] not in PACKAGES:
            self._files.makedirs(url.rpartition("/")[0], exist_ok=True)

    # ------------------------------------------------------------ files

    def folder_to_write(self, path: str) -> str:
        folder = self._folder_of_rank(path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return folder

    def _folder_of_rank(self, path: str) -> str:
        return self._temporary(f"rank-{os.getpid()}", path)

    def upload(self, path: str, names: Iterable[str]) -> None:
        with _plain_errors(path):
            for name in names:
                self._make_parent(f"{path}/{name}")
                self._files.put_file(os.path.join(self.folder_to_write(path), name), f"{path}/{name}")

    def drop_written(self, path: str) -> None:
        shutil.rmtree(self._folder_of_rank(path), ignore_errors=True)

    def folder_to_read(self, path: str) -> str:
        return self._temporary("fetched", path)

    def drop_fetched(self) -> None:
        shutil.rmtree(self._temporary(), ignore_errors=True)

    def _temporary(self, kind: str = "", path: str = "") -> str:
        """A local folder of this run; the ranks of a node share it."""
        folder = f"gflow-checkpoints-{self.owner.token}"
        return os.path.join(tempfile.gettempdir(), folder, kind, path.rpartition("/")[2]).rstrip("/")

    def fetch(self, path: str, part: int, parts: int) -> Iterator[None]:
        """Download the files that this rank of its node has to, and check them. All have the manifest."""
        manifest = self._read_manifest(path)
        folder = self.folder_to_read(path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _write(os.path.join(folder, MANIFEST), json.dumps(manifest).encode())
        # Every node needs the files: they are divided among its own ranks.
        part, parts = _place_on_node(os.environ, part, parts)
        try:
            names = sorted(manifest["files"], key=lambda name: (-manifest["files"][name]["size"], name))
            for name in names[part::parts]:
                yield from self._download(
                    f"{path}/{name}", os.path.join(folder, name), manifest["files"][name]
                )
        except (OSError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is incomplete: {error}") from error

    def _download(self, url: str, path: str, entry: Mapping[str, Any]) -> Iterator[None]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        digest, size, temporary = hashlib.sha256(), 0, f"{path}.{os.getpid()}"
        with _plain_errors(url), self._files.open(url, "rb") as there, open(temporary, "wb") as here:
            while data := there.read(CHUNK):
                digest.update(data)
                size += here.write(data)
                yield
        if (size, digest.hexdigest()) != (entry["size"], entry["sha256"]):
            raise CheckpointError(f"{url} does not match its checksum")
        os.replace(temporary, path)

    # ------------------------------------------------------------ finding

    def _names(self) -> set[str]:
        try:
            with _plain_errors(self.folder):
                self._files.invalidate_cache()
                found = self._files.ls(self.folder, detail=False)
        except FileNotFoundError:
            return set()
        return {name.rstrip("/").rpartition("/")[2] for name in found}

    def saved(self) -> list[Saved]:
        with _plain_errors(self.folder):
            return [saved for saved in super().saved() if self._files.exists(f"{saved.path}/{MANIFEST}")]

    def _read_manifest(self, path: str) -> dict[str, Any]:
        try:
            with _plain_errors(path):
                manifest: dict[str, Any] = json.loads(self._files.cat_file(f"{path}/{MANIFEST}"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is incomplete: {error}") from error
        return manifest


def file_system(url: str) -> Any:
    """Return fsspec's file system for a URL."""
    protocol = url.partition("://")[0]
    package = PACKAGES.get(protocol, "")
    try:
        import fsspec

        return fsspec.filesystem(protocol)
    except ImportError:
        needed = " ".join(["fsspec", *([package] if package else [])])
        raise Refused(f"{protocol}:// needs {package or 'fsspec'}", hint=f"pip install {needed}") from None
    except ValueError as error:
        raise CheckpointError(f"{url}: {error}", hint="s3://bucket/run, gs://bucket/run") from None


@contextmanager
def _plain_errors(url: str) -> Iterator[None]:
    """Turn the errors of libraries for object stores, which have no common class, into OSError."""
    try:
        yield
    except (OSError, CheckpointError):
        raise
    except Exception as error:
        raise OSError(f"{url}: {type(error).__name__}: {error}") from error


def _place_on_node(environ: Mapping[str, str], rank: int, world: int) -> tuple[int, int]:
    """Return the number of this rank on its node, and how many the node has; torchrun's variables tell."""
    local, count = environ.get("LOCAL_RANK", ""), environ.get("LOCAL_WORLD_SIZE", "")
    if world > 1 and local.isdecimal() and count.isdecimal():
        return int(local), int(count)
    return 0, 1


def _write(path: str, data: bytes) -> None:
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
