"""Function calls on disk: what a worker is to run, and what came of it.

A folder per executor, readable by its owner alone. A call is `N.call`, its outcome `N.outcome`,
which appears whole or not at all. The items of a map lie one behind the other in one file.
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
    """Where it happened: the traceback of the worker, as the cause of the exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(Exception):
    """Stands for an exception or a result that could not be sent back."""


class Outcome(NamedTuple):
    """What a call came to: a value, or an exception and its traceback."""

    value: Any
    error: BaseException | None
    trace: str

    def raised(self) -> BaseException | None:
        """The exception as the caller is to see it."""
        if self.error is not None:
            self.error.__cause__ = RemoteTraceback(self.trace)
        return self.error


def new_folder() -> Path:
    """A folder for the calls of one executor."""
    base = Path(paths.data_dir(getenv)) / "calls"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=base))


def each(function: Callable[..., Any], items: list[tuple[Any, ...]]) -> list[Any]:
    """What a task does with a chunk of a map."""
    return [function(*item) for item in items]


def write_call(folder: Path, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    _write_whole(folder / f"{name}.call", cloudpickle.dumps((list(sys.path), function, args, kwargs)))


def write_map(folder: Path, function: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> int:
    """A function and many argument lists; how many."""
    write_call(folder, MAP, function, (), {})
    offsets = []
    with (folder / "items").open("wb") as file:
        for item in items:
            offsets.append(_OFFSET.pack(file.tell()))
            file.write(cloudpickle.dumps(item))
    _write_whole(folder / "offsets", b"".join(offsets))
    return len(offsets)


def read_call(folder: Path, name: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The call of this name; a number of a map is `map-17`."""
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
    """Two steps: what was pickled by reference is imported with the caller's path."""
    return pickle.loads(content)


def write_outcome(folder: Path, name: str, outcome: Outcome) -> None:
    """Leave the outcome; if it cannot be sent, why."""
    try:
        content = cloudpickle.dumps(tuple(outcome))
        if outcome.error is not None:
            pickle.loads(content)  # many an exception can be pickled and not read back
    except Exception:
        about = f"{type(outcome.error).__name__}: {outcome.error}" if outcome.error else "the result"
        trace = outcome.trace or traceback.format_exc()
        content = cloudpickle.dumps((None, RemoteError(f"{about} could not be sent back"), trace))
    _write_whole(folder / f"{name}.outcome", content)


def take_outcome(folder: Path, name: str) -> Outcome | None:
    """The outcome, which is gone from the disk then; None if the worker left none."""
    path = folder / f"{name}.outcome"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink()
    (folder / f"{name}.call").unlink(missing_ok=True)
    return Outcome(*pickle.loads(content))


def _write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.rename(path)
