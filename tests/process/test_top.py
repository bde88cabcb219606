"""The command gflow top on a terminal, with a daemon."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.harness import Box, wait_until
from tests.process.test_gqueue import Terminal

pytest.importorskip("textual")


def screen(terminal: Terminal, since: int = 0) -> str:
    """What was drawn since, without the escape sequences."""
    from gflow.tui.log_feed import CONTROL

    return CONTROL.sub("", terminal.read()[since:])


def test_top_shows_events_within_a_second_survives_a_restart_and_acts(box: Box) -> None:
    box.up("--simulate-gpus", "2x80G", "--cpus", "4")
    box.submit("--gpus", "1", "--name", "first", "bash", "-c", "echo 'hello [b]log[/b]'; sleep 600")
    terminal = Terminal(box, "gflow", "top")
    wait_until(lambda: "Running (1)" in screen(terminal) and "first" in screen(terminal))
    wait_until(lambda: "hello [b]log[/b]" in screen(terminal), what="the log of the selected job")
    box.submit("--gpus", "2", "--name", "second", "true")
    began = time.monotonic()
    wait_until(lambda: "second" in screen(terminal), what="the event")
    assert time.monotonic() - began < 5  # far below the 10 s after which it looks without an event
    box.down()
    wait_until(lambda: "daemon away since" in screen(terminal))
    box.up()
    at = len(terminal.text)
    box.submit("--hold", "--name", "third", "true")
    wait_until(lambda: "third" in screen(terminal, at), what="the daemon that came back")
    os.write(terminal.fd, b"c")
    wait_until(lambda: "Cancel job 1 (first)?" in screen(terminal, at))
    os.write(terminal.fd, b"y")
    wait_until(lambda: box.job(1)["state"] == "Cancelled")
    os.write(terminal.fd, b"q")
    terminal.all()
    assert terminal.process.returncode == 0
    assert "\x1b[?1049l" in terminal.text and "Traceback" not in terminal.text


def test_top_without_terminal_daemon_or_textual_is_one_sentence(box: Box, tmp_path: Path) -> None:
    done = box.run("gflow", "top")
    assert done.returncode == 2 and "gflow status prints one screen" in done.stderr
    assert box.run("gflow", "top", "17").returncode == 2
    alone = Terminal(box, "gflow", "top")
    assert "The gflow daemon is not running." in alone.all()
    assert alone.process.returncode == 3
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'textual':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Gone())\n"
    )
    without = Terminal(box, "gflow", "top", PYTHONPATH=str(tmp_path))
    assert without.all().startswith("top: gflow top needs the extra tui, which is not installed")
    assert "[tui]" in without.text and without.process.returncode == 1
    piped = box.run("gflow", "top", env={"PYTHONPATH": str(tmp_path)})
    assert piped.returncode == 1 and "[tui]" in piped.stderr and "terminal" not in piped.stderr
