"""Bad input, typed or sent: one sentence, the right code, nothing changed, and soon.

"Soon" is counted in processor time, which a busy machine does not stretch: under a second, of
the command and of the daemon together. "Nothing changed" means the database, table by table.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from gflow.cli import gjob
from tests.harness import BIN, Box, UnixConnection

MOST_CPU_S = 2.0  # 1.06 s was measured where other programs took most of the CPU time


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A daemon to which nothing was ever submitted."""
    box = Box(tmp_path_factory.mktemp("empty")).up("--simulate-gpus", "4x80G", "--cpus", "4")
    yield box
    box.clean_up()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """Job 1 is held, 2 waits for it, 3 is over, 4 is an array, 5 and 6 are a sweep, 7 runs."""
    box = Box(tmp_path_factory.mktemp("busy")).up("--simulate-gpus", "4x80G", "--cpus", "4")
    box.submit("--hold", "true")
    box.submit("-d", "1", "true")
    box.finished(box.submit("true"))
    box.submit("--hold", "--array", "1-3", "true")
    box.ok("gbatch", "--hold", "--param", "lr=1,2", "echo", "{lr}")
    box.submit("sleep", "1000")
    (box.work / "folder").mkdir()
    (box.work / "empty.sh").write_text("")
    (box.work / "quote.sh").write_text("# GFLOW --name 'open\ntrue\n")
    (box.work / "typo.sh").write_text("# GFLOW --gpu 2\ntrue\n")
    (box.work / "stray.sh").write_text("# GFLOW 2 --gpus 1\ntrue\n")
    (box.work / "slurm.sh").write_text("#SBATCH --dependency=aftercorr:1\ntrue\n")
    (box.work / "secret.sh").write_text("true\n")
    (box.work / "typo.yaml").write_text("lr: 0.1\ngflow:\n  gpuss: 1\n")
    (box.work / "text.yaml").write_text("gflow: yes please\n")
    (box.work / "broken.toml").write_text("gflow = [\n")
    (box.work / "broken.json").write_text('{"gflow": ')
    (box.work / "names.csv").write_text("lr,bs\n")
    (box.work / "rows.csv").write_text("lr,bs\n1,2\n3\n")
    (box.work / "twice.csv").write_text("lr,lr\n1,2\n")
    yield box
    box.clean_up()


# ---------------------------------------------------------------- typed

G = "gbatch"
EMPTY = [
    ((G, "--depends-on", "@", "true"), 1, "none of your jobs"),
    ((G, "--depends-on", "17", "true"), 1, "there is no job 17"),
    (("gcancel", "1-4000000000"), 1, "there is no job 4000000000"),
    (("gcancel", "@"), 1, "none of your jobs"),
    (("gjob", "show", "@~3"), 1, "none of your jobs"),
    (("gjob", "redo", "@"), 1, "none of your jobs"),
    (("gjob", "log", "1"), 1, "there is no job 1"),
]
BUSY = [
    # numbers
    ((G, "--gpus", "-1", "true"), 2, "at least 0"),
    ((G, "--gpus", "many", "true"), 2, "whole number"),
    ((G, "--gpus", "1.5", "true"), 2, "whole number"),
    ((G, "--gpus", "5", "true"), 1, "this machine has 4"),
    ((G, "--gpus", "999999999999", "true"), 2, "at most 4096"),
    ((G, "--gpus", "9" * 30, "true"), 2, "whole number"),
    ((G, "--gpu", "1", "true"), 2, "did you mean --gpus?"),
    ((G, "--email", "ann@lab.example", "true"), 2, "did you mean --notify-email?"),
    ((G, "--gpus"), 2, "needs a value"),
    ((G, "--cpus", "1000", "true"), 1, "this machine has 4"),
    ((G, "--priority", "256", "true"), 2, "at most 255"),
    ((G, "--priority", "-1", "true"), 2, "at least 0"),
    ((G, "--nice", "low", "true"), 2, "whole number"),
    ((G, "--gpu-type", "H100", "--gpus", "1", "true"), 1, "of type"),
    # times
    ((G, "--stop-if-idle", "0", "--gpus", "1", "true"), 2, "longer than zero"),
    ((G, "--time", "abc", "true"), 2, "does not understand"),
    ((G, "--time", "-5", "true"), 2, "does not understand"),
    ((G, "--time", "1:99:99", "true"), 2, "does not understand"),
    ((G, "--begin", "25:00", "true"), 2, "does not understand"),
    ((G, "--begin", "2026-02-30", "true"), 2, "does not understand"),
    ((G, "--signal", "NOPE@5", "true"), 2, "does not understand"),
    ((G, "--grace", "soon", "true"), 2, "does not understand"),
    # memory
    ((G, "--memory", "1X", "true"), 2, "does not understand"),
    ((G, "--memory", "900T", "true"), 1, "of memory, and this machine has"),
    ((G, "--gpus", "1", "--shared", "true"), 2, "--shared needs"),
    ((G, "--gpus", "1", "--shared", "--gpu-memory", "82G", "true"), 1, "with 82 GiB"),
    ((G, "--gpus", "1", "--fit", "/nothing", "true"), 2, "/nothing cannot be read"),
    ((G, "--gpus", "1", "--fit", "/etc/passwd", "true"), 2, "is not a plan: it is not JSON"),
    ((G, "--fit", "/etc/passwd", "true"), 2, "is not a plan"),
    ((G, "--gpus", "1", "--shared", "--gpu-memory", "900G", "true"), 1, "with 900 GiB"),
    # names
    ((G, "--name", "a\nb", "true"), 2, "printable"),
    ((G, "--name", "a\x1b[31mb", "true"), 2, "printable"),
    ((G, "--name", "a\u202eb", "true"), 2, "printable"),
    ((G, "--name", "x" * 5000, "true"), 2, "at most 200"),
    ((G, "--name", "", "true"), 2, "empty"),
    ((G, "--name", b"\xff", "true"), 2, "printable"),
    ((G, "--project", "p" * 65, "true"), 2, "at most 64"),
    ((G, "--comment", "a\nb", "true"), 2, "printable"),
    # arrays and sweeps
    ((G, "--array", "5-1", "true"), 2, "does not understand"),
    ((G, "--array", "abc", "true"), 2, "does not understand"),
    ((G, "--array", "1-10:0", "true"), 2, "does not understand"),
    ((G, "--array", "1-10000000", "true"), 2, "at most 100,000"),
    ((G, "--array", "1,1", "true"), 2, "twice"),
    ((G, "--array", "1-3", "--param", "lr=1", "true"), 2, "cannot be an --array"),
    ((G, "--param", "lr=1", "echo", "{bs}"), 2, "{bs} is not a parameter"),
    ((G, "--param", "lr=1", "--name-template", "{bs}", "echo"), 2, "{bs} is not a parameter"),
    ((G, "--param", "lr", "echo", "{lr}"), 2, "does not understand"),
    ((G, "--param", "lr=", "echo", "{lr}"), 2, "empty value"),
    ((G, "--param", "l-r=1", "echo"), 2, "takes a name"),
    ((G, "--param", "lr=5:1", "echo"), 2, "no values"),
    ((G, "--param", "lr=0:1:0", "echo"), 2, "no values"),
    ((G, "--param", "lr=0:1e9", "echo"), 2, "more than 10,000"),
    ((G, "--param", "a=1:200", "--param", "b=1:200", "echo"), 2, "at most 10,000 jobs, not 40,000"),
    ((G, "--param", "lr=1", "--param", "lr=2", "echo"), 2, "given twice"),
    ((G, "--param-file", "nothing.csv", "echo"), 2, "No such file"),
    ((G, "--param-file", "names.csv", "echo"), 2, "needs a header row"),
    ((G, "--param-file", "rows.csv", "echo"), 2, "row 3 has 1 values"),
    ((G, "--param-file", "twice.csv", "echo"), 2, "twice"),
    # dependencies
    ((G, "--depends-on", "99", "true"), 1, "there is no job 99"),
    ((G, "--depends-on", "4_9", "true"), 1, "there is no job 4_9"),
    ((G, "--depends-on", "@~99", "true"), 1, "none of your jobs"),
    ((G, "--depends-on", "x", "true"), 2, "does not understand"),
    ((G, "--dependency", "aftercorr:1", "true"), 2, "not support the dependency"),
    (("gjob", "update", "1", "--depends-on", "1"), 1, "would wait for itself"),
    (("gjob", "update", "1", "--depends-on", "2"), 1, "would wait for itself"),
    # commands and scripts
    ((G, ""), 2, "empty"),
    ((G, "  "), 2, "empty"),
    ((G,), 2, "empty"),
    ((G, "no-such-program"), 2, "neither a file nor a program"),
    ((G, "./no-such-script"), 2, "there is no file"),
    ((G, "folder"), 2, "is a folder"),
    ((G, "empty.sh"), 2, "is empty"),
    ((G, "quote.sh"), 2, "line 1"),
    ((G, "typo.sh"), 2, "did you mean --gpus?"),
    ((G, "stray.sh"), 2, "is not an option"),
    ((G, "slurm.sh"), 2, "not support the dependency"),
    ((G, "echo", b"\xff"), 2, "not UTF-8"),
    ((G, "echo", *["x" * 100_000] * 12), 2, "longer than 1 MiB"),
    ((G, "x" * 100_000, "x"), 2, "x… is neither a file nor a program"),
    ((G, "--chdir", "nowhere", "true"), 2, "no folder"),
    ((G, "--venv", "nowhere", "true"), 2, "no environment"),
    ((G, "--conda-env", "nowhere", "true"), 2, "no conda environment"),
    ((G, "--output", "", "true"), 2, "takes a path"),
    ((G, "--config", "nothing.yaml", "true"), 2, "No such file"),
    ((G, "--config", "typo.yaml", "true"), 2, "did you mean --gpus?"),
    ((G, "--config", "text.yaml", "true"), 2, "must contain options"),
    ((G, "--config", "broken.toml", "true"), 2, "cannot be read"),
    ((G, "--config", "broken.json", "true"), 2, "cannot be read"),
    ((G, "new"), 2, "takes one name"),
    ((G, "new", "secret"), 1, "already exists"),
    # retries and notices
    ((G, "--retry-on", "oom", "true"), 2, "needs --max-retries"),
    ((G, "--max-retries", "1", "--retry-on", "sadness", "true"), 2, "does not understand"),
    ((G, "--max-retries", "1", "--retry-on", "exit:0", "true"), 2, "does not understand"),
    ((G, "--max-retries", "-1", "true"), 2, "at least 0"),
    ((G, "--notify-email", "nobody", "true"), 2, "takes an address"),
    ((G, "--notify-on", "job_exploded", "true"), 2, "unknown event"),
    # nothing is submitted by a dry run, right or wrong
    ((G, "--dry-run", "--gpus", "5", "true"), 1, "this machine has 4"),
    ((G, "--dry-run", "--depends-on", "99", "true"), 1, "there is no job 99"),
    # jobs that are not, or are not like that
    (("gcancel",), 2, "no job is named"),
    (("gcancel", "99"), 1, "there is no job 99"),
    (("gcancel", "1,99"), 1, "there is no job 99"),
    (("gcancel", "1-4000000000"), 1, "there is no job 4000000000"),
    (("gcancel", "7-5"), 2, "has no jobs"),
    (("gcancel", "4_[9]"), 1, "there is no job 4_9"),
    (("gcancel", "4_[1-"), 2, "does not name jobs"),
    (("gcancel", "x"), 2, "not a job id"),
    (("gcancel", "--state", "Sleeping"), 2, "unknown state"),
    (("gjob",), 2, None),
    (("gjob", "show"), 2, "no job is named"),
    (("gjob", "show", "99"), 1, "there is no job 99"),
    (("gjob", "frobnicate", "1"), 2, "no command"),
    (("gjob", "shwo", "1"), 2, "did you mean show?"),
    (("gjob", "cancel", "1"), 2, "did you mean gcancel JOB?"),
    (("gjob", "rm", "1"), 2, "did you mean gcancel JOB?"),
    (("gjob", "output", "1"), 2, "did you mean gjob log JOB?"),
    (("gjob", "help", "log"), 2, "did you mean gjob COMMAND --help?"),
    (("gflow", "version"), 2, "did you mean gflow --version?"),
    (("gjob", "tail", "1"), 2, "did you mean gjob log -f JOB?"),
    (("gjob", "status", "1"), 2, "did you mean gjob show JOB?"),
    (("gjob", "log", "-f", "2", "50"), 2, "first 2 lines: gjob log --first 2 50"),
    ((G, "--gpus", "0.5", "true"), 2, "--gpus 1 --shared --gpu-memory 20G"),
    (("gflow", "up"), 2, "did you mean gflowd up?"),
    (("gflow", "restart"), 2, "did you mean gflowd restart?"),
    (("gflow", "log"), 2, "did you mean gjob log JOB?"),
    (("gflow", "submit"), 2, "did you mean gbatch?"),
    (("gjob", "log", "-f", "1,2"), 2, "--follow takes one job"),
    (("gjob", "log", "3", "--failed"), 1, "none of these jobs ended as Failed or Timeout"),
    (("gjob", "hold", "7"), 1, "is running"),
    (("gjob", "hold", "3"), 1, "job 3 is over: Finished"),
    (("gjob", "release", "3"), 1, "gjob redo 3 does it again"),
    (("gjob", "update", "3", "--time", "10"), 1, "job 3 is over: Finished"),
    (("gjob", "hold", "99"), 1, "there is no job 99"),
    (("gcancel", "all"), 2, "gcancel --all cancels all your jobs"),
    (("gqueue", "foo"), 2, "g42 (a group) or @; by name: gqueue -N NAME, gcancel -n NAME"),
    (("gjob", "hold", "4_2"), 1, "name the array: 4"),
    (("gjob", "release", "7"), 1, "is running"),
    (("gjob", "release", "1", "--at", "25:00"), 2, "does not understand"),
    (("gjob", "update", "1"), 2, "nothing to change"),
    (("gjob", "update", "1", "--array", "1-3"), 2, "unknown option"),
    (("gjob", "update", "7", "--gpus", "1"), 1, "is running, and gpus cannot change"),
    (("gjob", "update", "7", "--time", "+2h"), 1, "no time limit"),
    (("gjob", "update", "1", "--time", "+soon"), 2, "does not understand"),
    (("gjob", "update", "1,7", "--gpus", "1"), 1, "is running"),
    (("gjob", "update", "1", "--shared"), 2, "needs --gpus and --gpu-memory"),
    (("gjob", "update", "1", "--gpus", "9"), 1, "this machine has 4"),
    (("gjob", "update", "1", "--command", ""), 2, "empty"),
    (("gjob", "update", "1", "--script", "folder"), 2, "cannot be read"),
    (("gjob", "update", "1", "--param", "lr=3"), 1, "has no parameter 'lr'"),
    (("gjob", "update", "5", "--param", "lr=3,4"), 2, "one value"),
    (("gjob", "update", "5", "--param", "bs=3"), 1, "has no parameter 'bs'"),
    (("gjob", "redo", "99"), 1, "there is no job 99"),
    (("gjob", "fetch", "1", "../x"), 2, "a pattern names files below the job's folder, not '../x'"),
    (("gjob", "fetch", "1"), 1, "job 1 is not on a cluster"),
    (("gjob", "redo", "1,77"), 1, "there is no job 77"),
    (("gjob", "redo", "3", "--gpus", "9"), 1, "this machine has 4"),
    # other programs
    (("gqueue", "-s", "Sleeping"), 2, "unknown state"),
    (("gqueue", "-f", "JOBID,COLOUR"), 2, "unknown column"),
    (("gqueue", "-j", "99999999999999999"), 1, "there is no job 99999999999999999"),
    (("gflow", "gquue"), 2, "did you mean gqueue?"),
    (("gflowd", "upp"), 2, "no command"),
]


def shown(value: Any) -> str:
    return " ".join(str(word)[:30] for word in value)[:80] if isinstance(value, tuple) else ""


@pytest.mark.parametrize(("words", "code", "says"), EMPTY, ids=shown)
def test_bad_command_line_without_daemon_is_refused(
    empty: Box, words: tuple[Any, ...], code: int, says: str
) -> None:
    refused(empty, words, code, says)


@pytest.mark.parametrize(("words", "code", "says"), BUSY, ids=shown)
def test_bad_command_line_is_refused(busy: Box, words: tuple[Any, ...], code: int, says: str | None) -> None:
    refused(busy, words, code, says)


def refused(box: Box, words: tuple[Any, ...], code: int, says: str | None) -> None:
    before, cpu = contents(box), cpu_s(box)
    done = box.run(*words)
    assert done.returncode == code, done.stderr
    if says is not None:  # else it is a page of help
        assert says in done.stderr
        assert done.stdout == ""
        assert 1 <= len(done.stderr.splitlines()) <= 2
    assert contents(box) == before
    assert cpu_s(box) - cpu < MOST_CPU_S


# Every command that names jobs; `{}` is the name.
NAMING = [
    "gqueue -j {}", "gqueue {}", "gcancel {}", "gcancel --dry-run {}", "gbatch --depends-on {} true",
    "gbatch --depends-on-any {} true", "gctl set-limit {} 2", "gflow events --past {}",
    "gjob show {}", "gjob log {}", "gjob log -f {}", "gjob attach {}", "gjob exec {} true", "gjob why {}",
    "gjob history {}", "gjob usage {}", "gjob hold {}", "gjob release {}", "gjob update {} --gpus 1",
    "gjob update 1 --depends-on {}", "gjob redo {}", "gjob wait {}", "gjob results {}", "gjob profile {}",
    "gcancel --signal CONT {}", "gjob fetch {}",
]  # fmt: skip
MALFORMED = ("abc", "4_x", "@@")
UNKNOWN = ("99", "4_99", "9999999999999999")


def test_every_command_that_names_jobs_is_in_the_table() -> None:
    named = {line.split()[1] for line in NAMING if line.startswith("gjob ")}
    assert named == {name for name, command in gjob.COMMANDS.items() if command.needs_jobs}


@pytest.mark.parametrize("line", NAMING)
def test_job_reference_malformed_is_usage_and_unknown_is_refused(busy: Box, line: str) -> None:
    for names, code in ((MALFORMED, 2), (UNKNOWN, 1)):
        for name in names:
            done = busy.run(*line.format(name).split())
            assert done.returncode == code, (name, done.stderr)
            assert len(done.stderr.splitlines()) <= 2 and done.stdout == "", (name, done.stderr)


def test_json_of_a_refusal_is_an_object_with_the_same_code(busy: Box) -> None:
    for words, code, says in (
        ((G, "--gpus", "5", "true"), 1, "refused"),
        ((G, "--time", "abc", "true"), 2, "usage"),
    ):
        done = busy.run(words[0], "--json", *words[1:])
        assert (done.returncode, done.stderr) == (code, "")
        assert json.loads(done.stdout)["error"]["code"] == says


def test_a_folder_that_is_gone(busy: Box) -> None:
    before = contents(busy)
    line = "mkdir gone && cd gone && rmdir ../gone && exec gbatch true"
    done = busy.run_shell(line)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no longer exists" in done.stderr
    assert contents(busy) == before


def test_path_that_is_not_utf8_is_named_and_a_link_to_it_helps(busy: Box) -> None:
    """JSON carries no such name; the sentence says which of the paths it is."""
    folder = os.fsencode(busy.work) + b"/\xff"
    os.mkdir(folder)
    Path(os.fsdecode(folder), "script.sh").write_text("pwd\n")
    before = contents(busy)

    def said(*words: bytes | str, cwd: bytes | Path = busy.work) -> str:
        done = subprocess.run([BIN / words[0], *words[1:]], cwd=cwd, env=busy.env, capture_output=True)
        assert done.returncode == 2 and not done.stdout, done
        return done.stderr.decode(errors="replace")

    in_folder = "gbatch: the name of the working folder contains bytes that are not UTF-8\nenter the folder"
    assert said(G, "true", cwd=folder).startswith(in_folder)
    assert said(G, "--chdir", folder, "true").startswith(in_folder)
    assert said(G, folder + b"/script.sh").startswith(
        "gbatch: the path of the script contains bytes that are not"
    )
    for words in ((G, "--output", folder + b"/log", "true"), ("gjob", "update", "1", "--output", folder)):
        assert "holds text that is not UTF-8" in said(*words)
    assert contents(busy) == before
    (busy.work / "link").symlink_to(os.fsdecode(folder))
    job = int(busy.run_shell("cd link && gbatch --parsable bash -c 'pwd -P | od -An -tx1'").stdout)
    assert busy.finished(job)["state"] == "Finished" and "ff 0a" in " ".join(busy.text_of(job).split())


def test_unusual_valid_input_is_accepted(busy: Box) -> None:
    """The neighbours of the refusals above."""
    for words in (
        ("--memory", "1.5G", "true"),
        ("--name", "übung 日本", "true"),
        ("--param", "lr=1", "echo", '{"a": {}} {} {{lr}}'),
        ("echo", "{lr}", "{}"),
        ("--array", "1-3%2", "true"),
    ):
        assert busy.ok(G, "--dry-run", *words).startswith("Would submit")


def contents(box: Box) -> list[list[Any]]:
    """Everything in the database."""
    with closing(sqlite3.connect(f"file:{box.data}/gflow.db?mode=ro", uri=True)) as db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]
        return [list(db.execute(f"SELECT * FROM {table}")) for table in tables]


def cpu_s(box: Box) -> float:
    """Processor time of the commands so far, and of the daemon."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert box.daemon is not None
    fields = Path(f"/proc/{box.daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(fields[11]) + int(fields[12])
    return used.ru_utime + used.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------- sent

TOKEN = '"token": "12345678"'
JOB = '"command": ["true"], "cwd": "/"'
JSON = {"Content-Type": "application/json"}
SENT = [
    ("POST", "/jobs", b"{", 400),
    ("POST", "/jobs", b"", 400),
    ("POST", "/jobs", b"[]", 400),
    ("POST", "/jobs", b"\xff\xfe", 400),
    ("POST", "/jobs", b"[" * 100_000, 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": []}}', 400),
    ("POST", "/jobs", f'{{"token": "1", "jobs": [{{{JOB}}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{"command": ["true"]}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{"command": ["true"], "cwd": "x"}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{"command": [], "cwd": "/"}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{"command": [""], "cwd": "/"}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{"command": ["a\\u0000"], "cwd": "/"}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{"command": ["{"x" * 5_000_000}"], "cwd": "/"}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "environ": "*"}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "options": {{"x": 1}}}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "surprise": 1}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "options": {{"gpus": 1e99}}}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "options": {{"gpus": 5}}}}]}}', 409),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}}}, {{{JOB}, "options": {{"gpus": 5}}}}]}}', 409),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "options": {{"name": "a\\nb"}}}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "options": {{"conda-env": "x"}}}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "rows": [{{"a": "1"}}, {{"b": "2"}}]}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "rows": [{{"a b": "1"}}]}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "options": {{"param": {{"a": []}}}}}}]}}', 400),
    ("POST", "/jobs", f'{{{TOKEN}, "jobs": [{{{JOB}, "options": {{"depends-on": "99"}}}}]}}', 404),
    ("POST", "/jobs/cancel", b'{"jobs": ["99"]}', 404),
    ("POST", "/jobs/cancel", b'{"jobs": ["1-4000000000"]}', 404),
    ("POST", "/jobs/cancel", b"{}", 400),
    ("POST", "/jobs/cancel", b"[]", 400),
    ("POST", "/jobs/hold", b'{"jobs": [7]}', 400),
    ("POST", "/jobs/update", b'{"jobs": ["1"], "options": {}}', 400),
    ("POST", "/jobs/update", b'{"jobs": ["1"], "options": {"array": null}}', 400),
    ("POST", "/jobs/update", b'{"jobs": ["1"], "command": []}', 400),
    ("POST", "/jobs/redo", b'{"job": "3", "token": "1"}', 400),
    ("POST", "/jobs/redo", b'{"job": "99", "token": "12345678"}', 404),
    ("DELETE", "/jobs", None, 405),
    ("PUT", "/jobs/1", b"{}", 405),
    ("POST", "/jobs/1", b"{}", 405),
    ("GET", "/nothing", None, 404),
    ("GET", "/jobs/99", None, 404),
    ("GET", "/jobs/abc", None, 400),
    ("GET", "/jobs/@@/log", None, 400),
    ("GET", "/jobs?jobs=4_x", None, 400),
    ("GET", "/jobs/9999999999999999", None, 404),
    ("POST", "/jobs/cancel", b'{"jobs": ["x"]}', 400),
    ("GET", "/jobs/1-4000000000", None, 404),
    ("GET", "/jobs/1,2/log", None, 400),
    ("GET", "/jobs?state=Running", None, 400),
    ("GET", "/jobs?states=Running&stats=1", None, 400),
    ("GET", "/stats?users=ann", None, 400),
    ("GET", "/events?jobs=1", None, 400),
    ("GET", "/info?Long", None, 400),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"), SENT, ids=lambda value: str(value)[:60].replace("\0", "")
)
def test_bad_request_is_refused(busy: Box, method: str, path: str, body: Any, status: int) -> None:
    answered(busy, method, path, body, JSON, status)


def answered(box: Box, method: str, path: str, body: Any, headers: dict[str, str], status: int) -> None:
    before, cpu = contents(box), cpu_s(box)
    connection = UnixConnection(box.socket)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    problem = json.loads(response.read())
    connection.close()
    assert (response.status, problem["status"]) == (status, status), problem
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["title"] and "\n" not in problem["title"] and len(problem["title"]) < 300
    assert problem["exit_code"] in (1, 2)
    assert contents(box) == before
    assert cpu_s(box) - cpu < MOST_CPU_S


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_body_of_another_type_is_not_looked_at(busy: Box, kind: str) -> None:
    answered(busy, "POST", "/jobs/cancel", b'{"jobs": ["1"]}', {"Content-Type": kind}, 415)


@pytest.mark.parametrize("path", ["/jobs", "/command"])
def test_a_request_that_is_too_large_is_refused_when_it_gets_so(busy: Box, path: str) -> None:
    """Announced or not: the client need not send the rest of it."""
    before = contents(busy)
    with unix_socket(busy) as sock:
        sock.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\n" % path.encode())
        sock.sendall(b"Content-Length: 999999999999\r\n\r\n")
        chunk = b" " * (1 << 20)
        answer = b""
        try:
            for _ in range(300):
                sock.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        with suppress(ConnectionResetError):
            answer = sock.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 413"), answer[:200]
    assert contents(busy) == before


def test_non_http_bytes_get_status_400(busy: Box) -> None:
    with unix_socket(busy) as sock:
        sock.sendall(b"hello\r\n\r\n")
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 400")


def test_a_request_that_breaks_off(busy: Box) -> None:
    before = contents(busy)
    with unix_socket(busy) as sock:
        sock.sendall(b'POST /jobs/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"jobs": ["1"')
    assert busy.ok("gqueue", "-j", "1")
    assert contents(busy) == before


def test_silent_callers_do_not_delay_others(busy: Box) -> None:
    """A thousand idle connections, and a hundred that dribble."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    open_ = []
    cpu = cpu_s(busy)
    try:
        open_ = [unix_socket(busy) for _ in range(1100)]
        for sock in open_[:100]:
            sock.sendall(b"POST /jobs HTTP/1.1\r\nHost: x\r\nX-Dribble: ")
        assert "1 " in busy.ok("gqueue", "-j", "1")
        assert busy.ok(G, "--dry-run", "true").startswith("Would submit 1")
        assert cpu_s(busy) - cpu < 2 * MOST_CPU_S
    finally:
        for sock in open_:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def unix_socket(box: Box) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    folder = os.open(os.path.dirname(box.socket), os.O_PATH)
    try:
        sock.connect(f"/proc/self/fd/{folder}/{os.path.basename(box.socket)}")
    finally:
        os.close(folder)
    return sock


# ---------------------------------------------------------------- no Slurm


def test_a_cluster_whose_commands_are_not_here(box: Box, tmp_path: Path) -> None:
    """The daemon's PATH counts; nothing is kept of the job."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sh", "env"):
        (folder / name).symlink_to(f"/bin/{name}")
    box.env["PATH"] = f"{BIN}:{folder}"
    box.up("--simulate-gpus", "4x80G", "--cpus", "4")
    done = box.run("gbatch", "--on", "slurm", "true")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "gbatch: slurm cannot be used from here: the daemon finds no sbatch on its PATH",
    )
    assert box.jobs() == {}
    assert box.run("gbatch", "--dry-run", "--on", "slurm", "true").returncode == 0
