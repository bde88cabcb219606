"""The daemon's own log: what users can cause in any number does not fill the disk."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable

from gflow.daemon.process.daemon_log import Once, PerMinute

WRITES = """
import logging, os, sys
from pathlib import Path
from gflow.daemon.process import daemon_log
path = Path(sys.argv[1])
daemon_log.MOST_BYTES = 100_000
daemon_log.set_up(path)
for number in range(20_000):
    logging.getLogger("gflow").error("line %d", number)
print("printed", flush=True)
"""


def test_full_log_file_is_rotated(tmp_path) -> None:
    path = tmp_path / "daemon.log"
    with path.open("ab") as log:
        subprocess.run([sys.executable, "-c", WRITES, path], stdout=log, stderr=log, check=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["daemon.log", "daemon.log.1"]
    assert all(one.stat().st_size < 110_000 for one in tmp_path.iterdir())
    assert path.stat().st_mode & 0o777 == 0o600
    lines = (tmp_path / "daemon.log.1").read_text() + path.read_text()
    assert lines.endswith("printed\n")
    numbers = [int(line.rsplit(" ", 1)[1]) for line in lines.splitlines()[:-1]]
    assert numbers == list(range(numbers[0], 20_000))


def test_other_file_at_the_end_of_standard_error_is_left_alone(tmp_path) -> None:
    with (tmp_path / "other").open("ab") as log:
        words = [sys.executable, "-c", WRITES, tmp_path / "daemon.log"]
        subprocess.run(words, stdout=log, stderr=log, check=True)
    assert [one.name for one in tmp_path.iterdir()] == ["other"]
    assert (tmp_path / "other").read_text().count("\n") == 20_001


def _logged(once: Once, number: int) -> logging.LogRecord | None:
    try:
        _ = [1, 2][number] if number > 1 else 1 / number
    except (IndexError, ZeroDivisionError):
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "it failed %d", (number,), sys.exc_info())
        return record if once.filter(record) else None
    return None


def test_traceback_is_logged_once_per_place() -> None:
    once = Once()
    first, other = _logged(once, 0), _logged(once, 5)
    assert first is not None and first.exc_info
    assert other is not None and other.exc_info
    later = [record for _ in range(999) if (record := _logged(once, 0)) is not None]
    assert [record.getMessage() for record in later] == [
        f"it failed 0: ZeroDivisionError: division by zero, {count} times so far" for count in (10, 100, 1000)
    ]
    assert not any(record.exc_info for record in later)


def test_warning_is_logged_at_once_and_then_counted_each_minute(caplog) -> None:
    waiting: list[Callable[[], None]] = []
    per_minute = PerMinute(lambda _, call: waiting.append(call))

    def passed(text: str, level: int = logging.WARNING) -> bool:
        return per_minute.filter(logging.LogRecord("x", level, "f", 1, text, (), None))

    assert [passed("bad") for _ in range(4)] == [True, False, False, False]
    assert passed("worse")
    assert [passed("grave", logging.ERROR) for _ in range(2)] == [True, True]
    for call in [waiting.pop(0), waiting.pop(0)]:
        call()
    assert [record.getMessage() for record in caplog.records] == ["bad: 3 times more within a minute"]
    assert [passed("bad"), passed("worse")] == [False, True]
    waiting.pop(0)()
    assert caplog.records[-1].getMessage() == "bad: 1 times more within a minute"
    waiting.pop(1)()
    assert passed("bad")
