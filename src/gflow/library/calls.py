"""Function calls on disk: calls for the workers of an executor, and their outcomes.

One directory per executor, readable only by its owner. A call is the file `N.call`, its outcome `N.outcome`,
which is written atomically. The items of a map are concatenated in one file.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from gflow import paths
from gflow.client.hot_path import getenv

_OFFSET = struct.Struct("<Q")
MAP = "map"


class RemoteTraceback(Exception):
    """The traceback of the worker, set as the cause of the exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(Exception):
    """Replaces an exception or a result that could not be pickled."""


class Outcome(NamedTuple):
    """The outcome of a call: a value, or an exception and its traceback."""

    value: Any
    error: BaseException | None
    trace: str

    def raised(self) -> BaseException | None:
        """The exception for the caller, with the remote traceback as its cause."""
        if self.error is not None:
            self.error.__cause__ = RemoteTraceback(self.trace)
        return self.error


def new_folder() -> Path:
    """Create a directory for the calls of one executor."""
    base = Path(paths.data_dir(getenv)) / "calls"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=base))


def each(function: Callable[..., Any], items: list[tuple[Any, ...]]) -> list[Any]:
    """Apply the function to a chunk of a map, within one task."""
    return [function(*item) for item in items]


def write_call(folder: Path, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    _write_atomically(folder / f"{name}.call", cloudpickle.dumps((list(sys.path), function, args, kwargs)))


def write_map(folder: Path, function: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> int:
    """Write a function and its argument lists. Returns the number of items."""
    write_call(folder, MAP, function, (), {})
    offsets = []
    with (folder / "items").open("wb") as file:
        for item in items:
            offsets.append(_OFFSET.pack(file.tell()))
            file.write(cloudpickle.dumps(item))
    _write_atomically(folder / "offsets", b"".join(offsets))
    return len(offsets)


def read_call(folder: Path, name: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Read the call with this name; `map-17` is item 17 of a map."""
    is_map, _, number = name.partition("-")
    path, function, args, kwargs = _load((folder / f"{is_map if number else name}.call").read_bytes())
    sys.path[:] = path
    if number:
        with (folder / "offsets").open("rb") as file:
            file.seek(int(number) * _OFFSET.size)
            (offset,) = _OFFSET.unpack(file.read(_OFFSET.size))
        with (folder / "items").open("rb") as file:
            file.seek(offset)
            args = pickle.load(file)
    return function, args, kwargs


def _load(content: bytes) -> Any:
    """Unpickle. Objects pickled by reference are imported, with the present sys.path."""
    return pickle.loads(content)


def write_outcome(folder: Path, name: str, outcome: Outcome) -> None:
    """Write the outcome; if it cannot be pickled, a RemoteError instead."""
    try:
        content = cloudpickle.dumps(tuple(outcome))
        if outcome.error is not None:
            pickle.loads(content)  # some exceptions can be pickled but not unpickled
    except Exception:
        about = f"{type(outcome.error).__name__}: {outcome.error}" if outcome.error else "the result"
        trace = outcome.trace or traceback.format_exc()
        content = cloudpickle.dumps((None, RemoteError(f"{about} could not be sent back"), trace))
    _write_atomically(folder / f"{name}.outcome", content)


def take_outcome(folder: Path, name: str) -> Outcome | None:
    """Read and delete the outcome; None: the worker left none."""
    path = folder / f"{name}.outcome"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink()
    (folder / f"{name}.call").unlink(missing_ok=True)
    return Outcome(*pickle.loads(content))


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.rename(path)
