"""Runs lives on a failing disk, several at a time, and judges what is left of them."""

from __future__ import annotations

import array
import json
import os
import queue
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tests.store.script import contents, open_store, plan

ROOT = Path(__file__).parents[2]
SERVERS = 2
POWER_CUT = 99
PLACES = ("database", "log", "journal", "other", "folder")
KINDS = ("write", "sync", "truncate", "unlink", "rename")

FAULTS: dict[str, dict[str, Any]] = {
    "nospace": {},
    "nospace-lasting": {"mode": "nospace", "times": 40},
    "short": {"times": 2},
    "error": {},
    "error-lasting": {"mode": "error", "times": 40},
    # A sync that failed loses its data for good, and shortly after, the power goes.
    "error-then-cut": {"mode": "error", "later": 7},
    "torn": {},
    "cut": {},
    "some": {},
    "sectors": {},
}


class Life(NamedTuple):
    """What one process did and left behind."""

    order: dict[str, Any]
    folder: Path
    code: int
    said: list[list[str]]

    @property
    def acked(self) -> int:
        return max((int(words[1]) for words in self.said if words[0] == "acked"), default=0)

    @property
    def refused(self) -> list[list[str]]:
        return [words for words in self.said if words[0] in ("refused", "unopened", "unrestored")]


class Disk:
    """Fork servers with the library preloaded, and a folder for each life."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        self._free: queue.Queue[subprocess.Popen[str]] = queue.Queue()
        for _ in range(SERVERS):
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.store.worker"],
                cwd=ROOT,
                env=os.environ | {"LD_PRELOAD": str(library)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            self._free.put(server)

    def close(self) -> None:
        for _ in range(SERVERS):
            server = self._free.get()
            assert server.stdin and server.stdout
            server.stdin.close()
            server.wait(20)
            server.stdout.close()

    def live(self, order: dict[str, Any], before: Path | None = None) -> Life:
        """One life in a folder of its own; `before`: a folder with the files it starts from."""
        folder = self.folder / "-".join(str(order[name]) for name in sorted(order))
        if before:
            shutil.copytree(before, folder)
        else:
            folder.mkdir()
        order = order | {"path": str(folder / "gflow.db")}
        server = self._free.get()
        try:
            assert server.stdin and server.stdout
            server.stdin.write(json.dumps(order) + "\n")
            code = int(server.stdout.readline())
        finally:
            self._free.put(server)
        text = (folder / "said").read_text()
        assert "Traceback" not in text, f"{order}\n{text}"
        return Life(order, folder, code, [line.split() for line in text.splitlines()])

    def live_all(self, orders: list[dict[str, Any]], judge: Any, before: Path | None = None) -> Counter[str]:
        """Live every order and judge it; how many came out how."""

        def one(order: dict[str, Any]) -> str:
            life = self.live(order, before)
            try:
                verdict: str = judge(life)
            except AssertionError as error:
                raise AssertionError(f"{life.order}: {error}\n{life.said}") from error
            shutil.rmtree(life.folder)
            return verdict

        with ThreadPoolExecutor(SERVERS) as pool:
            return Counter(pool.map(one, orders))


def order(fault: str, at: int) -> dict[str, Any]:
    """The fault at operation number `at`, in words that the library understands."""
    what: dict[str, Any] = {"mode": fault, "at": at} | FAULTS[fault]
    if "later" in what:
        what["cut_at"] = at + what.pop("later")
    return what


def spread(count: int, most: int) -> list[int]:
    """The numbers from 1 to `count`, or `most` of them, evenly spread."""
    if count <= most:
        return list(range(1, count + 1))
    return sorted({1 + i * (count - 1) // (most - 1) for i in range(most)})


def operations(life: Life) -> dict[tuple[str, str], int]:
    """How many operations of each kind the library saw, by place."""
    numbers = array.array("I", (life.folder / "counts").read_bytes())
    found = {}
    for i, number in enumerate(numbers):
        if number:
            found[PLACES[i // len(KINDS)], KINDS[i % len(KINDS)]] = number
    return found


def is_whole(db: sqlite3.Connection) -> bool:
    checks = [row[0] for row in db.execute("PRAGMA integrity_check")]
    return checks == ["ok"] and not db.execute("PRAGMA foreign_key_check").fetchall()


def judge(life: Life, expected: list[str]) -> str:
    """Old or new, never neither, never both; and life goes on from there."""
    last = len(expected) - 1
    if life.code == 0:
        assert life.acked == last
    else:
        assert life.code == POWER_CUT, f"it ended with {life.code}"
    for words in life.refused:
        if words[0] == "refused":
            assert words[2] == expected[int(words[1]) - 1], "a refused commit is seen by its own process"
    with closing(open_store(life.folder / "gflow.db")) as store:
        assert is_whole(store._db), "the database is damaged"
        found = contents(store._db)
        assert found in expected, f"a mixture: acked {life.acked}"
        commits = expected.index(found)
        in_flight = {life.acked, min(life.acked + 1, last)} if life.code else {last}
        assert commits in in_flight, f"{life.acked} commits were acknowledged, {commits} are there"
        for changes in plan()[commits:]:
            store.commit(changes)
        assert contents(store._db) == expected[-1], "life does not go on as it should"
    ending = "finished" if life.code == 0 else "new" if commits > life.acked else "old"
    return f"refused, {ending}" if life.refused else ending
