"""Searches in a log: lines with a text, lines that look like errors, parts of a large log."""

from __future__ import annotations

from pathlib import Path

import pytest

from gflow.daemon.execution import log_search
from gflow.daemon.execution.log_reader import read_piece
from gflow.daemon.execution.log_search import Match, Matches, search
from gflow.targets.file_rights import OWN_FILES

LOG = "start\nValue: 3\nerrors=0\nstep 1\nRuntimeError: cuda\nVALUE: 4\nKilled"
WHOLE = 1 << 30


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "log").write_text(LOG)
    return str(tmp_path / "log")


def test_lines_with_a_text_are_found_in_any_case(log: str) -> None:
    found = search(log, OWN_FILES, "value", 0, 1, WHOLE, 100)
    assert found.found == [Match(2, 6, "Value: 3"), Match(6, LOG.index("VALUE"), "VALUE: 4")]
    assert found.end == found.size == len(LOG)
    assert search("/nonexistent", OWN_FILES, "value", 0, 1, WHOLE, 100) == Matches([], 0, 1, 0)


def test_lines_that_look_like_errors_are_found(log: str) -> None:
    found = search(log, OWN_FILES, "", 0, 1, WHOLE, 100).found
    assert [one.text for one in found] == ["RuntimeError: cuda", "Killed"]
    assert [one.line for one in found] == [5, 7]


@pytest.mark.parametrize("limit", [1, 100])
def test_search_goes_on_where_it_stopped(log: str, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(log_search, "PART", 16)
    whole = [*search(log, OWN_FILES, "e", 0, 1, WHOLE, 100).found]
    offset, line, parts = 0, 1, []
    while offset < len(LOG):
        found = search(log, OWN_FILES, "e", offset, line, 10, limit)
        parts += found.found
        offset, line = found.end, found.line
    assert parts == whole == sorted(set(whole))


def test_first_line_of_a_piece_is_counted(log: str) -> None:
    at = LOG.index("step 1")
    assert read_piece(log, at, 4, OWN_FILES, counts_to=100).line == 4
    assert read_piece(log, at, 4, OWN_FILES).line is None
