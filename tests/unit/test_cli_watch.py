"""gqueue --watch and others: a frame for the size of the terminal."""

from __future__ import annotations

import os

import pytest

from gflow.cli.common import watch
from gflow.client import hot_path


@pytest.mark.parametrize(
    ("size", "shown"),
    [((80, 24), True), ((80, 4), False), ((0, 0), True)],
    ids=["usual", "small", "unknown"],
)
def test_frame_has_the_lines_that_fit(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], shown: bool
) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(hot_path, "write", lambda fd, data: written.append(data))
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size(size))
    watch._draw("JOBID\n1\n2\n", "gqueue")
    text = b"".join(written)
    assert (b"\n2" in text, b"more lines" in text) == (shown, not shown)
    assert b"gqueue" in text
