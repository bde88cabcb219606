"""Parts of a log: whole characters, and only of regular files of the owner."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from gflow.daemon.execution.log_reader import EMPTY, Piece, read_piece
from gflow.errors import Refused
from gflow.targets import file_rights
from gflow.targets.file_rights import OWN_FILES, LocalOpener, Owner

TEXT = "aé€😀z"  # characters of 1 to 4 bytes


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "1.log"
    path.write_text(TEXT)
    return str(path)


def test_parts_have_whole_characters_and_join_to_the_log(log: str) -> None:
    size = len(TEXT.encode())
    for most in range(4, size + 2):
        text, offset = "", 0
        while offset < size:
            piece = read_piece(log, offset, most, OWN_FILES)
            assert piece.start == offset and piece.end > offset
            text, offset = text + piece.text, piece.end
        assert text == TEXT, most
    for offset in range(size):
        piece = read_piece(log, offset, 100, OWN_FILES)
        assert TEXT.endswith(piece.text) and "\ufffd" not in piece.text
        assert piece.start == size - len(piece.text.encode())


def test_offset_below_zero_counts_from_the_end(log: str) -> None:
    assert read_piece(log, -1, 100, OWN_FILES) == Piece(10, 11, 11, "z")
    assert read_piece(log, -99, 100, OWN_FILES).text == TEXT
    assert read_piece(log, 99, 100, OWN_FILES) == Piece(11, 11, 11, "")


def test_bytes_that_are_not_text_are_replaced(log: str) -> None:
    Path(log).write_bytes(b"ok \xff\xfe end\xc3")
    assert read_piece(log, 0, 100, OWN_FILES).text == "ok \ufffd\ufffd end"
    assert (
        read_piece(log, 9, 100, OWN_FILES).text == "\ufffd"
    )  # nothing else is left, so it is not waited for


def test_missing_log_is_empty_and_others_files_are_refused(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_piece(str(tmp_path / "none"), 0, 9, OWN_FILES) == EMPTY
    with monkeypatch.context() as patch:  # as if root's groups could read the file
        patch.setattr(file_rights, "_acting_as", lambda owner: nullcontext())
        with pytest.raises(Refused, match="belongs to another user"):
            read_piece(log, 0, 9, LocalOpener(Owner(os.getuid() + 1, os.getgid())))
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(Refused, match="not a regular file"):
            read_piece(str(path), 0, 9, OWN_FILES)
