"""The command line: output, and errors for wrong input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gflow
from gflow.cli.registry import PROGRAMS
from tests.harness import BIN, Box, wait_until

HOT = {
    "gflow", "gflow.client", "gflow.client.hot_path", "gflow.entry", "gflow.paths",
}  # fmt: skip
CALL = HOT | {
    "gflow.cli", "gflow.client.http", "gflow.cli.main", "gflow.options", "gflow.options.parse",
    "gflow.options.job_options",
}  # fmt: skip
LOOK = CALL | {
    "gflow.cli.common",
    "gflow.cli.common.listing",
    "gflow.options.values",
}


def options(program: str) -> set[str]:
    """The modules that declare the options of a program."""
    return {"gflow.options.commands", f"gflow.options.commands.{program}_options"}


# What these would load costs more than all the rest of a command.
DEAR = {"argparse", "collections", "enum", "json", "os", "re", "socket", "typing", "urllib.parse"}


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ("gbatch true", HOT),
        ("gqueue -s Running -f JOBID,ST", HOT),
        ("gstats -o csv", LOOK | {"gflow.cli.gstats", *options("gstats")}),
        ("ginfo", HOT),
        ("gjob show 1", HOT),
        ("gjob history 1", HOT),
        ("gcancel 1", HOT),
    ],
)
def test_printing_command_loads_few_modules(daemon: Box, words: str, modules: set[str]) -> None:
    code = (
        "import sys; sys.path.append(sys.argv.pop(1)); program, *words = sys.argv.pop(1).split()\n"
        "from gflow import entry\n"
        "entry.leave = lambda code: print(code, *sorted(sys.modules))\n"
        "sys.argv[1:] = words; entry.main(program)"
    )
    daemon.submit("true")
    root = str(Path(gflow.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root, words],
        env=daemon.env,
        cwd=daemon.work,
        capture_output=True,
        text=True,
    )
    exit_code, *loaded = done.stdout.splitlines()[-1].split()
    assert exit_code == "0", done.stdout + done.stderr
    assert {name for name in loaded if name.startswith("gflow")} == modules
    assert not DEAR & set(loaded)


@pytest.mark.parametrize("command", ["gqueue", "gflowd config", "gflowd --help", "gjob history 1"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_gets_no_complaint(daemon: Box, command: str, unbuffered: str) -> None:
    daemon.submit("true")
    done = subprocess.run(
        ["bash", "-c", f"(sleep 0.1; {command}; echo $? >&2) | true"],
        env=daemon.env | {"PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
    )
    assert done.stderr == "1\n"


def test_no_daemon_is_exit_code_3_and_says_how_to_start_one(box: Box) -> None:
    for words in (("gbatch", "true"), ("gqueue",), ("ginfo",), ("gjob", "show", "1"), ("gcancel", "1")):
        done = box.run(*words)
        assert (done.returncode, done.stdout) == (3, ""), words
        assert done.stderr.endswith("start it with: gflowd up\n")
        answer = json.loads(box.run(words[0], "--json", *words[1:]).stdout)
        assert answer["error"]["code"] == "unreachable"


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory):
    box = Box(tmp_path_factory.mktemp("shared")).up("--simulate-gpus", "4x80G", "--cpus", "4")
    yield box
    box.clean_up()


def test_json_is_valid_when_empty_and_when_refused(shared_daemon: Box) -> None:
    assert json.loads(shared_daemon.ok("gqueue", "--json")) == {"jobs": [], "total": 0}
    refused = shared_daemon.run("gbatch", "--json", "--gpus", "99", "true")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "refused"


def test_json_of_what_starts_stops_and_prints_files(box: Box) -> None:
    """Whatever takes --json answers with one object, and no line of text beside it."""

    def said(*words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(box.ok(*words, "--json"))
        return found

    assert said("gflowd", "down") == {"running": False, "stopped": False, "running_jobs": None}
    assert said("gflowd", "init", "--yes") == {"path": str(box.home / ".config/gflow/gflow.toml")}
    first = said("gflowd", "up")
    assert (first["running"], first["started"], first["socket"]) == (True, True, box.socket)
    assert said("gflowd", "up") == {"running": True, "pid": first["pid"], "started": False}
    again = said("gflowd", "restart")
    assert again["pid"] != first["pid"] and again["started"]
    job = box.submit("--wait", "echo one; echo two; printf '\\377'")
    log = said("gjob", "log", str(job))
    assert log == {"job_id": job, "path": f"{box.data}/logs/1.log", "size": 9, "content": "one\ntwo\n\ufffd"}
    assert said("gjob", "log", "@", "--first", "1")["content"] == "one\n"
    assert said("gjob", "log", "@", "--last", "2")["content"] == "two\n\ufffd"
    assert said("gjob", "log", str(box.submit("--hold", "true")))["content"] == ""
    assert box.run("gjob", "log", "-f", "--json", "1").returncode == 2
    assert said("gjob", "close-sessions") == {"closed": 0}
    assert said("gflowd", "down") == {"running": False, "stopped": True, "running_jobs": 0}


def test_help_of_every_program_teaches(shared_daemon: Box) -> None:
    for program in PROGRAMS:
        text = shared_daemon.ok(program, "--help")
        assert text.startswith(f"usage: {program}")
        assert "examples:" in text
        assert max(map(len, text.splitlines())) <= 80, text
        assert f"  {program}" in text.split("examples:")[1]


def test_gflow_umbrella_runs_every_command(shared_daemon: Box) -> None:
    assert (
        shared_daemon.ok("gflow", "queue")
        == shared_daemon.ok("gqueue")
        == shared_daemon.ok("gflow", "gqueue")
    )
    assert shared_daemon.ok("gflow") == shared_daemon.ok("gflow", "--help")
    assert all(f"  {program} " in shared_daemon.ok("gflow") for program in PROGRAMS)
    wrong = shared_daemon.run("gflow", "cancel", "99")
    hint = "gqueue -a lists all jobs, also those that have ended"
    assert (wrong.returncode, wrong.stderr) == (1, f"gcancel: there is no job 99\n{hint}\n")


def test_every_program_says_its_version(shared_daemon: Box) -> None:
    for program in ("gflow", *PROGRAMS):
        first, *more = shared_daemon.ok(program, "--version").splitlines()
        assert first == f"{program} {gflow.__version__}"
        assert len(more) == 2


def test_a_bug_is_a_sentence_and_a_file_not_a_traceback(box: Box) -> None:
    box.env["PYTHONPATH"] = str(box.root)
    (box.root / "sitecustomize.py").write_text(
        "import gflow.cli.gqueue as module\ndef run(words): raise KeyError('oh\\nno')\nmodule.run = run\n"
    )
    done = box.run("gqueue", "-a")
    sentence, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence == r"gqueue: this is a bug in gflow: KeyError: 'oh\nno'"
    path = Path(hint.split()[-1])
    assert path.parent == box.data / "logs"
    assert "Traceback (most recent call last)" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    answer = json.loads(box.run("gqueue", "--json").stdout)
    assert answer["error"]["code"] == "internal"


def test_ginfo_shows_gpu_holders_and_marks_simulated(daemon: Box) -> None:
    job = daemon.submit("--gpus", "2", "--name", "train", "sleep", "60")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    lines = daemon.ok("ginfo").splitlines()
    assert lines[0].split() == ["PARTITION", "GPUS", "NODES", "STATE", "JOB(REASON)"]
    assert lines[1].split() == ["gpu", "2", "2,3", "idle"]
    assert lines[2].split() == ["gpu", "2", "0,1", "allocated", "1", "(train)"]
    assert "simulated" in lines[3]


def test_ginfo_long_says_since_when_and_until_when(daemon: Box) -> None:
    job = daemon.submit("--gpus", "1", "--time", "1:00:00", "sleep", "60")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    daemon.finished(daemon.submit("--gpus", "1", "true"))
    page = daemon.ok("ginfo", "info")
    assert page == daemon.ok("ginfo", "-l") or "idle for" in page
    assert page.count("UUID: GPU-simulated-") == 4
    assert page.count("free at about") == 1
    assert page.count("idle for at least") == 2
    assert page.count("idle for 0") == 1
    assert "simulated" in page
    one, two, *_ = json.loads(daemon.ok("ginfo", "--json"))["gpus"]
    assert one["free_at"] > daemon.job(job)["started_at"]
    assert (two["idle_s_at_least"], two["available"]) == (False, True)


def test_ginfo_watches(daemon: Box) -> None:
    process = subprocess.Popen(
        [BIN / "ginfo", "-w", "--interval", "1"], env=daemon.env, stdout=subprocess.PIPE, text=True
    )
    seen = [process.stdout.readline() for _ in range(5)]
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    assert sum(line.startswith("PARTITION") for line in seen) >= 1


def test_gqueue_columns(daemon: Box) -> None:
    daemon.submit("--gpus", "3", "--name", "a", "sleep", "60")
    daemon.submit("--gpus", "2", "--name", "b", "sleep", "60")
    text = daemon.ok("gqueue", "-f", "JOBID,NAME,ST,NODES,NODELIST(REASON)")
    assert text == (
        "JOBID  NAME  ST  NODES  NODELIST(REASON)\n"
        "1      a     R   3      0,1,2\n"
        "2      b     PD  2      (Resources: Need 2 GPUs, only 1 available)\n"
    )
    assert daemon.ok("gqueue", "-s", "R", "-f", "JOBID,NODELIST") == (
        "JOBID  NODELIST(REASON)\n1      0,1,2\n"
    )
