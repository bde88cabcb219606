"""The line of what takes long: on a terminal only, and gone at the end."""

from __future__ import annotations

import io
import threading

import pytest

from gflow.cli.common import status_line


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.told.set()


def test_terminal_shows_the_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(status_line, "PATIENCE_S", 0.001)
    monkeypatch.setattr("sys.stderr", terminal)
    with status_line.show_status("playing"):
        assert terminal.told.wait(10)
    assert terminal.getvalue().startswith("\rplaying: 0 s\033[K")
    assert terminal.getvalue().endswith("\r\033[K")


def test_quick_work_shows_no_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(status_line, "PATIENCE_S", 60)
    monkeypatch.setattr("sys.stderr", terminal)
    with status_line.show_status("playing"):
        pass
    assert terminal.getvalue() == ""


def test_file_gets_no_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(status_line, "PATIENCE_S", 0)
    monkeypatch.setattr("sys.stderr", file)
    with status_line.show_status("playing"):
        pass
    assert file.getvalue() == ""


def test_a_failure_goes_through_and_the_line_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(status_line, "PATIENCE_S", 0.001)
    monkeypatch.setattr("sys.stderr", terminal)
    with pytest.raises(ValueError), status_line.show_status("playing"):
        assert terminal.told.wait(10)
        raise ValueError
    assert terminal.getvalue().endswith("\r\033[K")
