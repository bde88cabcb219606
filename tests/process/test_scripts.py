"""Scripts and words, whatever they contain: they run as they were submitted, and nothing is evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import Box

pytestmark = pytest.mark.both_shims

ODD = [
    "${HOME}",
    "{}",
    "$(touch evaluated)",
    "`touch evaluated`",
    "a  b",
    "",
    "*",
    "'\"\\",
    "ü\n2",
    "%j",
    "--gpus",
    "@",
]


def lines_of(box: Box, job: int) -> list[str]:
    assert box.finished(job)["state"] == "Finished", box.text_of(job)
    return box.text_of(job).splitlines()


def printed(words: list[str]) -> list[str]:
    return [repr(word) for word in words]


@pytest.fixture
def odd_folder(daemon: Box) -> Path:
    folder = daemon.work / "my $(touch evaluated) {} ${HOME} 'runs'"
    folder.mkdir()
    return folder


SHOW = "import sys, os\nfor word in sys.argv[1:]: print(repr(word))\n"


def test_the_words_of_a_command_arrive_untouched(daemon: Box) -> None:
    job = daemon.submit("python3", "-c", SHOW, *ODD)
    assert lines_of(daemon, job) == printed(ODD)
    assert not list(daemon.work.iterdir())


def test_words_of_100_kilobytes(daemon: Box) -> None:
    words = ["x" * 100_000, "y" * 100_000]
    (daemon.work / "count.sh").write_text('echo ${#1} ${#2} "${2:0:3}"\n')
    assert lines_of(daemon, daemon.submit("bash", "count.sh", *words)) == ["100000 100000 yyy"]


def test_a_folder_with_an_odd_name(daemon: Box, odd_folder: Path) -> None:
    """Its scripts run from it, source and import their siblings, and log into it."""
    (odd_folder / "lib.sh").write_text("greet() { echo hello; }\n")
    (odd_folder / "run.sh").write_text('. "$(dirname "$0")/lib.sh"; greet; pwd; echo "$GFLOW_SCRIPT"\n')
    (odd_folder / "helper.py").write_text("NAME = 'world'\n")
    (odd_folder / "main.py").write_text("#!/usr/bin/env python3\nimport helper; print(helper.NAME)\n")
    shell = daemon.submit("run.sh", cwd=odd_folder)
    assert lines_of(daemon, shell) == ["hello", str(odd_folder), str(odd_folder / "run.sh")]
    python = daemon.submit("--output", "logs/%j.txt", "./main.py", cwd=odd_folder)
    assert daemon.finished(python)["state"] == "Finished"
    assert (odd_folder / f"logs/{python}.txt").read_text() == "world\n"
    assert not (daemon.work / "evaluated").exists() and not (odd_folder / "evaluated").exists()


@pytest.mark.parametrize("change", ["edited", "deleted"])
def test_a_script_that_changed_meanwhile_runs_as_submitted_and_finds_its_siblings(
    daemon: Box, change: str
) -> None:
    (daemon.work / "helper.py").write_text("NAME = 'world'\n")
    script = daemon.work / "main.py"
    script.write_text("#!/usr/bin/env python3\nimport helper; print('old', helper.NAME)\n")
    job = daemon.submit("--hold", "main.py")
    if change == "edited":
        script.write_text("#!/usr/bin/env python3\nprint('new')\n")
    else:
        script.unlink()
    daemon.ok("gjob", "release", str(job))
    notice, output = lines_of(daemon, job)
    assert notice == f"gflow: {script} changed since it was submitted; running it as it was then"
    assert output == "old world"
