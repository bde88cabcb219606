"""Works on a disk that fails: lives the life of `script`, opens a database, or restores a backup.

Forks a process for each order, to save Python's start. Reads one order per line, as JSON; answers
with the exit code. What the child says is in the file `said` beside the database:
`opened`, `acked N`, `refused N CONTENTS`, `closed`, `restored`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gflow.errors import StoreError
from gflow.store.backup import restore
from gflow.store.sqlite import SqliteStore
from tests.store.script import contents, open_store, plan

T = TypeVar("T")
TRIES = 100


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def persistently(act: Callable[[], T], what: str) -> T:
    """Until it works: a fault that passes must not leave anything that does not."""
    for _ in range(TRIES):
        try:
            return act()
        except StoreError as error:
            say(what, error.message)
    raise AssertionError(f"{what} without end")


def opened(order: dict[str, Any]) -> SqliteStore:
    store = persistently(lambda: open_store(Path(order["path"])), "unopened")
    say("opened")
    return store


def live(order: dict[str, Any]) -> None:
    store = opened(order)
    if "synchronous" in order:  # a mutant that is careless about the disk
        store._db.execute(f"PRAGMA synchronous = {order['synchronous']}")
    for number, changes in enumerate(plan(), 1):
        for _ in range(TRIES):
            try:
                store.commit(changes)
                break
            except StoreError as error:
                store.load()
                say("refused", number, contents(store._db), error.message)
        else:
            raise AssertionError(f"commit {number} never worked again")
        say("acked", number)
    store.close()
    say("closed")


def put_back(order: dict[str, Any]) -> None:
    path = Path(order["path"])
    persistently(lambda: restore(path.with_name("backup.db"), path, 1), "unrestored")
    say("restored")
    opened(order).close()


WORKS = {"live": live, "open": lambda order: opened(order).close(), "restore": put_back}


def child(order: dict[str, Any]) -> None:
    folder = Path(order["path"]).parent
    os.dup2(os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
    library = ctypes.CDLL(None)
    library.faulty_count(os.fsencode(folder / "counts"))
    library.faulty_arm(
        os.fsencode(order["path"]),
        order["mode"].encode(),
        ctypes.c_long(order["at"]),
        ctypes.c_long(order.get("times", 1)),
        ctypes.c_long(order.get("cut_at", 0)),
        ctypes.c_uint(order["at"]),
    )
    code = 0
    try:
        WORKS[order.get("what", "live")](order)
    except BaseException:
        say(traceback.format_exc())
        code = 1
    os._exit(code)


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
