"""The log of the launcher: lines are in the file at once, lost ones are counted, old files are kept."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gflow.privileged import launcher_log
from gflow.privileged.launcher_log import LauncherLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "launcher.log"


@contextmanager
def full_disk(room: int, path: Path) -> Iterator[None]:
    """Only so many bytes more fit into the file: a write that is longer is cut, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def texts(path: Path) -> list[str]:
    """The lines without their times."""
    return [line[20:] for line in path.read_text().splitlines()]


def test_line_is_in_the_file_before_what_it_tells_is_done(path: Path) -> None:
    """Also within a turn of the loop: kill -9 loses no line about an order that was carried out."""

    async def take_order() -> list[str]:
        LauncherLog(path).note("start 1.1 uid 1000 'true'")
        return texts(path)

    assert asyncio.run(take_order()) == ["INFO start 1.1 uid 1000 'true'"]


def test_lines_that_a_full_disk_loses_are_counted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = LauncherLog(path)
    log.note("before")
    with full_disk(0, path):
        for number in range(3):
            log.note(f"lost {number}")
    log.note("after")
    assert texts(path) == ["INFO before", "WARNING 3 earlier lines could not be written", "INFO after"]
    said = [record.getMessage() for record in caplog.records if record.name == "gflow.daemon"]
    assert said == [
        f"lines of {path} are lost: {os.strerror(errno.EFBIG)}",
        f"3 lines of {path} were lost",
    ]


def test_line_that_is_written_in_part_is_lost_and_the_next_is_a_line(path: Path) -> None:
    log = LauncherLog(path)
    with full_disk(30, path):
        log.note("a line that does not fit")
    log.note("after")
    cut, lost, after = texts(path)
    assert "a line that does not fit".startswith(cut.removeprefix("INFO "))
    assert lost.startswith("WARNING 1 earlier lines") and after == "INFO after"


def test_log_is_rotated_and_a_rotation_that_fails_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_log, "MOST_BYTES", 100)
    log, open_file = LauncherLog(path), os.open

    def refuse(*words: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor")

    monkeypatch.setattr(os, "open", refuse)
    for number in range(8):
        log.note(f"line {number}")
    assert texts(path) == [f"INFO line {number}" for number in range(8)]
    monkeypatch.setattr(os, "open", open_file)
    for number in range(8, 40):
        log.note(f"line {number}")
    files = [Path(f"{path}.{number}") for number in range(launcher_log.OLDER_FILES, 0, -1)]
    kept = [line for file in [*files, path] for line in texts(file)]
    assert kept == [f"INFO line {number}" for number in range(40)][-len(kept) :]
    assert not Path(f"{path}.{launcher_log.OLDER_FILES + 1}").exists()


def test_word_of_a_user_makes_no_second_line(path: Path) -> None:
    log = LauncherLog(path)
    log.handle(logging.makeLogRecord({"msg": "a\nINFO start 9.9", "levelname": "WARNING"}))
    assert texts(path) == ["WARNING a\\nINFO start 9.9"]
