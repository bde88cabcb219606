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


def test_a_script_with_arguments_is_still_a_script(daemon: Box) -> None:
    """Its options count, and each argument arrives as it was typed."""
    (daemon.work / "run.sh").write_text(
        '#!/bin/bash\n# GFLOW --gpus 1 --name "with words"\nprintf "<%s>" "$0" "$@"\n'
    )
    script = daemon.work / "run.sh"
    for word in ("run.sh", "./run.sh", str(script)):
        job = daemon.submit(word, "--lr", "a  b")
        assert lines_of(daemon, job) == [f"<{script}><--lr><a  b>"]
        assert (daemon.job(job)["name"], daemon.job(job)["gpus"]) == ("with words", 1)
    job = daemon.submit("-", "x", "y", input='echo "$2 $1"\n')
    assert lines_of(daemon, job) == ["y x"]


def test_a_script_with_arguments_in_a_sweep(daemon: Box) -> None:
    (daemon.work / "run.sh").write_text('echo "$@"\n')
    assert (
        "[2] " + str(daemon.work / "run.sh") + " --lr 0.01 (GPUs: 0)"
        in daemon.ok("gbatch", "--dry-run", "--param", "lr=0.1,0.01", "run.sh", "--lr", "{lr}").splitlines()[
            2
        ]
    )
    jobs = daemon.ok("gbatch", "--parsable", "--param", "lr=0.1,0.01", "run.sh", "--lr", "{lr}").split()
    assert [lines_of(daemon, int(job)) for job in jobs] == [["--lr 0.1"], ["--lr 0.01"]]


def test_a_program_with_arguments_is_no_script(daemon: Box) -> None:
    """Neither one that a file here is called like, nor one that is no text."""
    (daemon.work / "echo").write_text("exit 3\n")
    assert lines_of(daemon, daemon.submit("echo", "a")) == ["a"]
    (daemon.work / "mine").symlink_to("/bin/echo")
    for words in (["./mine", "b"], ["mine", "b"], ["--export", "NONE", "./mine", "b"]):
        assert lines_of(daemon, daemon.submit(*words)) == ["b"]


def test_program_that_does_not_exist_yet_is_accepted(daemon: Box) -> None:
    """A job before it may build the program; another PATH may have it."""
    build = daemon.submit("printf '#!/bin/bash\\necho built \"$@\"' > prog; chmod +x prog")
    job = daemon.submit("--depends-on", str(build), "./prog", "here")
    assert lines_of(daemon, job) == ["built here"]
    tools = daemon.work / "venv/bin"
    tools.mkdir(parents=True)
    (tools / "tool").write_text("#!/bin/bash\necho tool $1\n")
    (tools / "tool").chmod(0o755)
    assert lines_of(daemon, daemon.submit("--venv", "venv", "tool", "x")) == ["tool x"]
    assert lines_of(daemon, daemon.submit("--venv", "venv", "tool")) == ["tool"]
