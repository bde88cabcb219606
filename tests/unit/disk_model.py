"""A model of a disk without mercy: what is not synced may be gone after a power cut, or half there.

`record` lets a program work on a real folder and writes down what it does; `after` is what a disk would hold
if the power had gone after so many operations.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gflow.ml.train.checkpoint import disk

Operation = tuple[Any, ...]


class Leaf:
    """A file, or a symbolic link (whose text is durable with its name)."""

    def __init__(self, link: str = "") -> None:
        self.link = link
        self.now = b""
        self.synced = b""


class Folder:
    def __init__(self) -> None:
        self.now: dict[str, Leaf | Folder] = {}
        # What the names meant when the folder was synced last, and after each change since.
        self.moments: list[dict[str, Leaf | Folder]] = [{}]

    def changed(self) -> None:
        self.moments.append(dict(self.now))

    def sync(self) -> None:
        self.moments = [dict(self.now)]


class DiskModel:
    """Follows operations below the folder `root`, which began as `before`."""

    def __init__(self, before: Path, root: Path) -> None:
        self._root = str(root)
        self.root = Folder()
        self._load(before, self.root)

    def _load(self, path: Path, folder: Folder) -> None:
        for entry in path.iterdir():
            if entry.is_symlink():
                folder.now[entry.name] = Leaf(os.readlink(entry))
            elif entry.is_dir():
                folder.now[entry.name] = inner = Folder()
                self._load(entry, inner)
            else:
                folder.now[entry.name] = leaf = Leaf()
                leaf.now = leaf.synced = entry.read_bytes()
        folder.sync()

    def _find(self, path: str) -> tuple[Folder, str]:
        *way, name = os.path.relpath(path, self._root).split("/")
        folder = self.root
        for part in way:
            inner = folder.now[part]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name

    def do(self, operation: Operation) -> None:
        what, path, *more = operation
        folder, name = self._find(path)
        if what == "sync":
            node = self.root if name == "." else folder.now[name]
            if isinstance(node, Folder):
                node.sync()
            else:
                node.synced = node.now
        elif what == "write":
            leaf = folder.now[name]
            assert isinstance(leaf, Leaf)
            leaf.now += more[0]
        else:
            self._rename(folder, name, what, more)

    def _rename(self, folder: Folder, name: str, what: str, more: list[Any]) -> None:
        if what == "create":
            folder.now[name] = Leaf()
        elif what == "folder":
            folder.now[name] = Folder()
        elif what == "link":
            folder.now[name] = Leaf(more[0])
        elif what == "remove":
            del folder.now[name]
        elif what == "rename":
            to, new = self._find(more[0])
            assert to is folder, "the model knows renames within one folder alone"
            folder.now[new] = folder.now.pop(name)
        folder.changed()

    def lay_out(self, path: Path, names: Callable[[Folder], Any], text: Callable[[Leaf], bytes]) -> None:
        self._lay_out(self.root, path, names, text)

    def _lay_out(self, folder: Folder, path: Path, names: Any, text: Any) -> None:
        path.mkdir(parents=True)
        for name, node in names(folder).items():
            if isinstance(node, Folder):
                self._lay_out(node, path / name, names, text)
            elif node.link:
                (path / name).symlink_to(node.link)
            else:
                (path / name).write_bytes(text(node))


def after(before: Path, root: Path, operations: list[Operation], how: str, path: Path, seed: int = 0) -> None:
    """`path` becomes what is left of `before` after these operations on `root`. `how`:
    `kill` (the process died), `cut` (nothing that was not synced), `some` (some of it)."""
    model = DiskModel(before, root)
    for operation in operations:
        model.do(operation)
    dice = random.Random(seed)
    if how == "kill":
        model.lay_out(path, lambda folder: folder.now, lambda leaf: leaf.now)
    elif how == "cut":
        model.lay_out(path, lambda folder: folder.moments[0], lambda leaf: leaf.synced)
    else:
        model.lay_out(
            path,
            lambda folder: dice.choice(folder.moments),
            lambda leaf: leaf.now[: dice.randint(len(leaf.synced), len(leaf.now))],
        )


def record(monkeypatch: Any) -> list[Operation]:
    """From now on, everything done through `disk` is done, and written down in this list."""
    log: list[Operation] = []

    class Recorded(disk.File):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            log.append(("create", path))

        def write(self, data: Any) -> int:
            half = len(data) // 2
            for part in (data[:half], data[half:]):
                super().write(part)
                log.append(("write", self.path, bytes(part)))
            return len(data)

        def close(self) -> None:
            super().close()
            log.append(("sync", self.path))

    def noted(name: str, what: str, swap: bool = False) -> None:
        real = getattr(disk, name)

        def act(*paths: str) -> None:
            real(*paths)
            log.append((what, *(reversed(paths) if swap else paths)))

        monkeypatch.setattr(disk, name, act)

    monkeypatch.setattr(disk, "File", Recorded)
    noted("make_folder", "folder")
    noted("rename", "rename")
    noted("link", "link", swap=True)
    noted("remove", "remove")
    noted("remove_folder", "remove")
    noted("sync", "sync")
    return log
