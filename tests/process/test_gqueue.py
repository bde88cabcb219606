"""gqueue on a terminal, in pipes, and with typing errors."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess

import pytest

from gflow.text.queue import COLUMNS
from tests.harness import BIN, Box, wait_until


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory):
    """Jobs in all kinds of states on four simulated GPUs."""
    box = Box(tmp_path_factory.mktemp("filled"))
    try:
        box.up("--simulate-gpus", "4x80G", "--cpus", "4")
        box.submit("--name", "prepare", "--project", "vision", "true")
        box.submit("--name", "broken", "false")
        for number in (1, 2):
            box.finished(number)
        box.submit("--gpus", "3", "--name", "train", "--time", "2:00:00", "--memory", "1G", "sleep", "600")
        box.submit("--gpus", "2", "--name", "wide", "--priority", "50", "sleep", "600")
        box.submit("--depends-on", "3", "--name", "evaluate", "true")
        box.submit("--depends-on", "4,5", "--name", "report", "--project", "vision", "true")
        box.submit("--hold", "--name", "later", "true")
        box.submit("--array", "1-60%4", "--gpus", "2", "--name", "sweep", "true")
        box.submit("--name", "gone", "--hold", "true")
        box.ok("gcancel", "9")
        wait_until(lambda: box.job(3)["state"] == "Running")
        yield box
    finally:
        box.clean_up()


NAMES = ("-f", "JOBID,NAME,ST,NODES,NODELIST(REASON)")
TABLE = """\
JOBID       NAME      ST  NODES  NODELIST(REASON)
3           train     R   3      0,1,2
4           wide      PD  2      (Resources: Need 2 GPUs, only 1 available)
5           evaluate  PD  0      (Dependency)
6           report    PD  0      (Dependency)
7           later     H   0      (JobHeldUser)
8_[1-60%4]  sweep     PD  2      (Resources: Need 2 GPUs, only 1 available)
"""
ALL = """\
JOBID       NAME      ST  NODES  NODELIST(REASON)
1           prepare   CD  0      -
2           broken    F   0      (ExitCode:1)
3           train     R   3      0,1,2
4           wide      PD  2      (Resources: Need 2 GPUs, only 1 available)
5           evaluate  PD  0      (Dependency)
6           report    PD  0      (Dependency)
7           later     H   0      (JobHeldUser)
8_[1-60%4]  sweep     PD  2      (Resources: Need 2 GPUs, only 1 available)
9           gone      CA  0      (CancelledByUser)
"""
TREE = """\
JOBID       NAME      ST
1           prepare   CD
2           broken    F
3           train     R
╰─ 5        evaluate  PD
   ╰─ 6     report    PD
4           wide      PD
╰─ → 6
7           later     H
8_[1-60%4]  sweep     PD
9           gone      CA
"""
GROUPS = """\
Running (1)
────────────────────────────────────────────────────────────
JOBID       NAME      ST
3           train     R

Queued (4)
────────────────────────────────────────────────────────────
JOBID       NAME      ST
4           wide      PD
5           evaluate  PD
6           report    PD
8_[1-60%4]  sweep     PD

Hold (1)
────────────────────────────────────────────────────────────
JOBID       NAME      ST
7           later     H
"""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (NAMES, TABLE),
        (("-a", *NAMES), ALL),
        (("-t", "-a", "-f", "JOBID,NAME,ST"), TREE),
        (("-g", "-f", "JOBID,NAME,ST"), GROUPS),
        (("--all", "--format", NAMES[1]), ALL),
        (("--tree", "--all", "--format=JOBID,NAME,ST"), TREE),
        (("--group", "--format=JOBID,NAME,ST"), GROUPS),
    ],
)
def test_gqueue_output_matches_golden_text(filled: Box, words, text) -> None:
    assert filled.ok("gqueue", *words) == text


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("", "3 4 5 6 7 8"),
        ("-a", "1 2 3 4 5 6 7 8 9"),
        ("-c", "1 2 9"),
        ("-s Running,h", "3 7"),
        ("-s FAILED,ca", "2 9"),
        ("-s pending", "4 5 6 8"),
        ("-s completed", "1"),
        ("-j 3", "3"),
        ("-j 2-4,7", "2 3 4 7"),
        ("--job 1-4000000", "1 2 3 4 5 6 7 8 9"),
        ("-j 100-200", ""),
        ("-j @,@~1", "8 9"),
        ("-j 8_3", "8"),
        ("-j 8_[1-60:2],3", "3 8"),
        ("-j 1-400000000000000000", "1 2 3 4 5 6 7 8 9"),
        (f"-j {','.join(str(n % 9 + 1) for n in range(2000))}", "1 2 3 4 5 6 7 8 9"),
        ("2 4-5", "2 4 5"),
        ("-j 1-9 -s R", "3"),
        ("-N wide,broken -a", "2 4"),
        ("-N wide,broken", "4"),
        ("-P vision", "6"),
        ("-P vision -a", "1 6"),
        ("-u nobody", ""),
        ("-u all", "3 4 5 6 7 8"),
        ("-u * -c", "1 2 9"),
        ("-n 2", "3 4"),
        ("-n -2", "7 8"),
        ("-n 0 -a", "1 2 3 4 5 6 7 8 9"),
        ("-n 2 --offset 1 -a", "2 3"),
        ("--offset 7 -a", "8 9"),
        ("-a -n -1", "9"),
        ("-r name", "5 7 6 8 3 4"),
        ("-r priority", "4 3 5 6 7 8"),
        ("-r -priority -n 1", "8"),
        ("-r gpus", "3 4 8 5 6 7"),
        ("-r state -a", "3 4 5 6 8 7 1 2 9"),
        ("-r time -n 1", "3"),
        ("-r -id", "8 7 6 5 4 3"),
        ("-c --since 1h", "1 2 9"),
        ("--since today -s cd", "1"),
        ("-c --since 2099-01-01", ""),
        ("-T -n 1", "3"),
        ("--all --states Failed --jobs 1-9", "2"),
        ("--completed --project vision --users all", "1"),
        ("--names wide,train --sort name --limit 1 --user all", "3"),
    ],
)
def test_gqueue_filters_select_jobs(filled: Box, words, ids) -> None:
    text = filled.ok("gqueue", *words.split(), "-f", "JOBID")
    assert [line.partition("_")[0] for line in text.splitlines()[1:]] == ids.split()
    data = json.loads(filled.ok("gqueue", *words.split(), "--json"))
    assert [str(job["array_id"] or job["id"]) for job in data["jobs"]] == ids.split()
    assert data["total"] >= len(data["jobs"])


def test_the_total_counts_what_a_limit_leaves_out(filled: Box) -> None:
    assert filled.api("GET", "/jobs?limit=2")[1]["total"] == 6
    assert filled.api("GET", "/jobs?all=1&limit=2&offset=3")[1]["total"] == 9


BAD = [
    ("-s Sleeping", 2, "unknown state 'Sleeping'", "choose from: Queued"),
    ("-s Runing", 2, "unknown state 'Runing'", "did you mean Running?"),
    ("-f JOBID,COLOUR", 2, "unknown column 'COLOUR'", "choose from: JOBID"),
    ("-f JOBID,NMAE", 2, "unknown column 'NMAE'", "did you mean NAME?"),
    ("-r nmae", 2, "unknown order 'nmae'", "did you mean name?"),
    ("-r ''", 0, "", ""),
    ("-o xml", 2, "unknown output format 'xml'", "choose from: table, json, csv, yaml"),
    ("-o jsn", 2, "unknown output format 'jsn'", "did you mean json?"),
    ("-n many", 2, "--limit takes a whole number, not 'many'", ""),
    ("-n 99999999999", 2, "--limit takes a whole number", ""),
    ("--offset -1", 2, "--offset must be at least 0, not -1", ""),
    ("--since soon", 2, "--since does not understand 'soon'", "write 2h"),
    ("--interval 0 -w", 2, "--interval must be longer than zero", ""),
    ("-j 99", 1, "there is no job 99", ""),
    ("-j 8_99", 1, "there is no job 8_99", ""),
    ("-j 99999999999999999", 1, "there is no job 99999999999999999", ""),
    ("-j 9-1", 2, "the range 9-1 has no jobs", "write 1-9"),
    ("-j 1-", 2, "'1-' is not a job id", ""),
    ("-j 8_1-8_3", 2, "is not a job id", ""),
    ("-j [", 2, "does not name jobs", ""),
    (f"-j {','.join(f'{n}-{n}' for n in range(1, 2000, 2))}", 2, "more than 500 separate jobs", "5-9"),
    ("-g -t", 2, "--group or --tree, not both", ""),
    ("-t -o csv", 2, "--group and --tree print tables, not csv", ""),
    ("--colour", 2, "unknown option '--colour'", ""),
    ("--statess R", 2, "unknown option '--statess'", "did you mean --states?"),
    ("-f", 2, "--format needs a value", ""),
]


@pytest.mark.parametrize(("line", "code", "says", "hint"), BAD)
def test_bad_input(filled: Box, line, code, says, hint) -> None:
    words = [word.strip("'") for word in line.split()]
    done = filled.run("gqueue", *words)
    assert done.returncode == code, done.stderr
    if code:
        assert done.stdout == ""
        assert done.stderr.startswith("gqueue: ")
        assert says in done.stderr and hint in done.stderr
        assert len(done.stderr.splitlines()) <= 2
        if "-o" not in words and "-t" not in words:
            refused = filled.run("gqueue", "-o", "json", *words)
            assert json.loads(refused.stdout)["error"]["message"] in done.stderr
            assert refused.returncode == code


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=x", 400),
        ("offset=-1", 400),
        ("width=-3", 400),
        ("form=xml", 400),
        ("sort=", 200),
        ("since=x", 400),
        ("states=,,", 200),
        ("jobs=1-4000000000000", 200),
        ("jobs=%00", 400),
        ("limit=" + "9" * 400, 400),
    ],
)
def test_bad_queries(filled: Box, query, status) -> None:
    assert filled.api("GET", f"/jobs?{query}")[0] == status


def test_gqueue_output_formats_are_parseable(filled: Box) -> None:
    rows = list(csv.DictReader(io.StringIO(filled.ok("gqueue", "-a", "-o", "csv"))))
    assert [row["id"] for row in rows] == [*"1234567", "8", "9"]
    assert rows[2] | {"submitted_at": "", "started_at": "", "time": ""} == {
        "id": "3", "name": "train", "state": "Running", "time": "", "gpus": "3", "user": rows[0]["user"],
        "submitted_at": "", "reason": "", "project": "", "gpu_ids": "0 1 2", "started_at": "",
        "finished_at": "", "exit_code": "", "attempt": "1", "priority": "10",
    }  # fmt: skip
    assert filled.ok("gqueue", "-o", "csv", "-f", "jobid,st", "-n", "1") == "JOBID,ST\n3,R\n"
    text = filled.ok("gqueue", "-o", "yaml", "-n", "2")
    assert text.startswith("jobs:\n- id: 3\n  array_id: null\n")
    assert "\n- id: 4\n" in text and text.endswith("total: 6\n")
    data = json.loads(filled.ok("gqueue", "--output", "json", "-n", "1"))
    assert data["jobs"][0]["name"] == "train"


def test_empty_gqueue_output_is_valid(filled: Box) -> None:
    empty = ("gqueue", "-u", "nobody")
    assert json.loads(filled.ok(*empty, "-o", "json")) == {"jobs": [], "total": 0}
    assert filled.ok(*empty, "-o", "csv").startswith("id,name,state,time,gpus,user,submitted_at,reason")
    assert len(filled.ok(*empty, "-o", "csv").splitlines()) == 1
    assert filled.ok(*empty, "-o", "yaml") == "jobs: []\ntotal: 0\n"
    assert filled.ok(*empty, "-f", "JOBID,ST") == filled.ok(*empty, "-t", "-f", "JOBID,ST") == "JOBID  ST\n"
    assert filled.ok(*empty, "-g") == ""


# ---------------------------------------------------------------- on a terminal


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, box: Box, *words: str, columns: int = 80, lines: int = 24, **env: str) -> None:
        self.fd, other = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [str(BIN / words[0]), *words[1:]],
            env=box.env | {"TERM": "xterm"} | env,
            stdin=other, stdout=other, stderr=other, start_new_session=True,
        )  # fmt: skip
        os.close(other)
        os.set_blocking(self.fd, False)
        self.text = ""

    def read(self) -> str:
        try:
            while data := os.read(self.fd, 65536):
                self.text += data.decode()
        except OSError:  # nothing to read, or the other end is closed
            pass
        return self.text

    def all(self) -> str:
        wait_until(lambda: (self.read(), self.process.poll() is not None)[1])
        return self.read()


def test_on_a_terminal_states_have_colours_and_lines_fit(filled: Box) -> None:
    text = Terminal(filled, "gqueue", "-a", columns=60).all()
    assert "\x1b[1;32mR\x1b[0m" in text and "\x1b[1;31mF\x1b[0m" in text
    plain = Terminal(filled, "gqueue", "-a", columns=60, NO_COLOR="1").all()
    assert "\x1b" not in plain
    assert max(map(len, plain.split("\r\n"))) <= 60
    assert "…" not in plain, "reasons wrap"
    assert "…" in Terminal(filled, "gqueue", "-a", "-f", "NAME,REASON,COMMAND", columns=40).all()
    wide = Terminal(filled, "gqueue", "-a", columns=200, NO_COLOR="1").all()
    lines = _timeless(wide.replace("\r\n", "\n")).splitlines()
    assert lines[:-1] == _timeless(filled.ok("gqueue", "-a")).splitlines()
    assert re.fullmatch(r"\d+ running, \d+ waiting; \d+ of \d+ GPUs in use", lines[-1])
    assert "\x1b" not in Terminal(filled, "gqueue", TERM="dumb").all()


def test_an_empty_queue_says_where_ended_jobs_are(box: Box) -> None:
    box.up()
    assert Terminal(box, "gqueue").all() == "no active jobs; jobs that have ended: gqueue -a\r\n"
    box.finished(box.submit("true"))
    assert Terminal(box, "gqueue").all() == "no active jobs; 1 ended today: gqueue -a\r\n"
    box.finished(box.submit("false"))
    assert Terminal(box, "gqueue").all() == "no active jobs; 2 ended today, 1 failed: gqueue -a\r\n"
    assert box.ok("gqueue").startswith("JOBID") and "no active" not in box.ok("gqueue")


def test_pages_and_errors_fit_80_columns(daemon: Box) -> None:
    daemon.submit("--gpus", "3", "--name", "a-name-of-a-job-" * 3, "sleep", "60")
    daemon.submit("--gpus", "4", "sleep", "60")
    lines = (
        "gqueue -f NOPE", "gjob nope 3", "gjob close-sessions", "gflowd nope", "gctl nope", "gctl quota set",
        "gctl quota nope", "gbatch --notify-on nope true", "gbatch --notify-email a@b.c true",
        "gbatch true --gpus 1", "gjob usage 1", "gflow gpus", "gflow fit --params 7B --gpu A100-80GB",
        "gjob why 2", "ginfo", "ginfo -l", "gctl show-gpus", "gqueue",
    )  # fmt: skip
    for line in lines:
        text = Terminal(daemon, *line.split(), NO_COLOR="1", XDG_CONFIG_HOME="/etc").all()
        assert text.strip() and max(map(len, text.split("\r\n"))) <= 80, text
    gpus = Terminal(daemon, "ginfo", NO_COLOR="1").all()
    assert [line[:1] for line in gpus.split("\r\n")][:6] == ["G", "0", "1", "2", "3", "("], "a line for each"


def test_a_terminal_shows_the_last_20_of_all_ended_jobs(box: Box) -> None:
    box.up()
    box.ok("gbatch", "--hold", "--param", "n=1:25", "echo {n}")
    box.ok("gcancel", "g1")
    note = "(the last 20 of 25; -n 0 shows all)"
    for words in (("-s", "CANCELLED"), ("-c",), ("-c", "--me")):
        *rows, last = Terminal(box, "gqueue", *words, NO_COLOR="1").all().split("\r\n")[1:-1]
        assert (len(rows), rows[0][:2], rows[-1][:2], last) == (20, "6 ", "25", note), words
    for words in (("-c", "-n", "0"), ("-c", "--since", "today"), ("-a", "--expand"), ("-c", "-r", "-id")):
        text = Terminal(box, "gqueue", *words, NO_COLOR="1").all()
        assert "the last" not in text and "\r\n1 " in text, words
    assert len(box.ok("gqueue", "-c").splitlines()) == 26


def test_reasons_wrap_on_a_narrow_terminal(box: Box) -> None:
    box.up("--simulate-gpus", "4x80G")
    box.submit("--gpus", "2", "--hold", "true")
    box.ok("gctl", "drain", "--reason", "a new disk for all the data that did not fit before")
    box.submit("--gpus", "2", "true")
    text = " ".join(Terminal(box, "gqueue", columns=60, NO_COLOR="1").all().split())
    assert "(Drained: a new disk for all the data that did not fit before)" in text
    assert text.endswith("0 running, 2 waiting; 0 of 4 GPUs in use")
    assert "running" not in Terminal(box, "gqueue", "-u", "all", "-N", "x").all()


def test_watched_json_is_nothing_but_json(box: Box) -> None:
    box.up()
    terminal = Terminal(box, "gqueue", "--watch", "--json", "--interval", "1")
    wait_until(lambda: terminal.read().count("\n") >= 2)
    terminal.process.terminate()
    assert [json.loads(line) for line in terminal.text.splitlines()[:2]] == [{"jobs": [], "total": 0}] * 2


def test_the_help_lists_every_column(box: Box) -> None:
    page = box.ok("gqueue", "--help")
    assert [name for name in COLUMNS if not re.search(rf"(?<!\S){re.escape(name)}(?!\S)", page)] == []


def _timeless(text: str) -> str:
    """Between two looks a running job gets older."""
    return re.sub(r"\d\d:\d\d:\d\d", "-", text)


def test_watching_redraws_and_survives_a_restart_of_the_daemon(box: Box) -> None:
    box.up("--simulate-gpus", "4x80G")
    box.submit("--hold", "--name", "first", "true")
    terminal = Terminal(box, "gqueue", "--watch", "--interval", "1", lines=10)
    wait_until(lambda: "first" in terminal.read())
    assert "Every 1 s: gqueue --watch" in terminal.text
    box.down()
    wait_until(lambda: "daemon unreachable" in terminal.read())
    box.up()
    box.submit("--hold", "--name", "second", "true")
    wait_until(lambda: "second" in terminal.read())
    for _ in range(10):
        box.submit("--hold", "true")
    wait_until(lambda: "more lines)" in terminal.read())
    assert terminal.text.count("\x1b[2J") == 1  # cleared once; after that only written over
    terminal.process.send_signal(signal.SIGINT)
    terminal.all()
    assert terminal.process.returncode == 0
    assert terminal.text.endswith("\x1b[?25h")


def test_watching_into_a_pipe_prints_one_frame_after_the_other(filled: Box) -> None:
    words = [str(BIN / "gqueue"), "-w", "--interval", "1", "-n", "1", "-f", "JOBID,ST"]
    with subprocess.Popen(words, env=filled.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        read = "".join(process.stdout.readline() for _ in range(6))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert read == "JOBID  ST\n3      R\n\n" * 2


def test_watching_without_a_daemon_is_the_usual_error(box: Box) -> None:
    assert box.run("gqueue", "-w").returncode == 3


# ---------------------------------------------------------------- many jobs


def test_a_long_answer_comes_whole(daemon: Box) -> None:
    jobs = [daemon.job_request(["true", "x" * 50], hold=True)] * 4000
    assert daemon.api("POST", "/jobs", {"token": "a" * 16, "jobs": jobs})[0] == 201
    assert len(daemon.ok("gqueue").splitlines()) == 4001
    text = daemon.ok("gqueue", "-f", "JOBID,NAME,ST,TIME,NODES,NODELIST(REASON),COMMAND,WORKDIR")
    assert len(text) > 300_000 and len(text.splitlines()) == 4001
    data = json.loads(daemon.ok("gqueue", "-r", "-id", "--json"))
    assert [job["id"] for job in data["jobs"]] == [*range(4000, 0, -1)]
    assert daemon.ok("gqueue", "-n", "-1", "-f", "JOBID") == "JOBID\n4000\n"


def test_names_with_wildcards_and_my_jobs(daemon: Box) -> None:
    for name in ("lr1", "lr2", "bs1", "lr[1]"):
        daemon.submit("--hold", "--name", name, "true")
    done = daemon.submit("--name", "lr9", "true")
    daemon.finished(done)

    def names(*words: str) -> list[str]:
        return daemon.ok("gqueue", "-f", "NAME", *words).split()[1:]

    assert names("-N", "lr*") == ["lr1", "lr2", "lr[1]"]
    assert names("-a", "-N", "lr*,bs?") == ["lr1", "lr2", "bs1", "lr[1]", "lr9"]
    assert names("-c", "-N", "*9") == ["lr9"]
    assert names("-N", "lr[1]") == ["lr1", "lr[1]"]
    assert names("--me", "-N", "bs*") == names("-u", "all", "-N", "bs*") == ["bs1"]
    assert names("-u", "nosuch") == []
    assert names("-u", "nosuch", "--me", "-N", "bs*") == ["bs1"]
    assert json.loads(daemon.ok("gstats", "-u", "all", "--json"))["total_jobs"] == 5
    assert daemon.ok("gstats", "-u", "all") == daemon.ok("gstats", "--all-users")
    assert "cannot be combined" in daemon.run("gstats", "--me", "-u", "ann").stderr
    assert daemon.ok("gcancel", "--dry-run", "--me").count("Hold") == 4
    daemon.ok("gcancel", "-u", "all", "-n", "lr*")
    assert names() == ["bs1"]
    daemon.ok("gcancel", "--me")
    assert names() == []


def test_a_group_is_named_as_one(daemon: Box) -> None:
    daemon.submit("true")
    text = daemon.ok("gbatch", "--hold", "--param", "lr=3,1,2", "echo", "{lr}")
    assert "group_id: 2" in text
    daemon.submit("true")
    table = daemon.ok("gqueue", "g2", "-r", "params", "-f", "JOBID,GROUP,PARAMS").splitlines()
    assert [line.split() for line in table[1:]] == [
        ["3", "g2", "lr=1"], ["4", "g2", "lr=2"], ["2", "g2", "lr=3"],
    ]  # fmt: skip
    assert json.loads(daemon.ok("gjob", "show", "--json", "g2"))["total"] == 3
    assert "At most 2 of these 3 jobs" in daemon.ok("gctl", "set-limit", "g2", "2")
    assert daemon.ok("gjob", "release", "g2").count("released") == 3
    assert daemon.ok("gjob", "wait", "g2") == ""
    assert daemon.ok("gcancel", "g2").count("is already Finished") == 3
    refused = daemon.run("gqueue", "g5")
    assert refused.returncode == 1 and "there is no group g5" in refused.stderr


def test_a_sweep_is_one_line_on_a_terminal(daemon: Box) -> None:
    body = {"token": "x" * 16, "jobs": [daemon.job_request(["true"], param={"a": ["1", "2"]})]}
    text = daemon.api("POST", "/jobs?named", body, accept="text/plain")[1]
    assert text.startswith(b"Submitted 2 batch jobs 1-2 as group g1\n")


def test_what_failed_of_a_group_is_shown_and_redone(daemon: Box) -> None:
    daemon.ok("gbatch", "--param", "x=0,1,2", "bash", "-c", "echo said {x}; exit {x}")
    daemon.run("gjob", "wait", "g1")
    assert daemon.ok("gjob", "log", "g1", "--failed") == (
        "==> 2 echo Failed ExitCode:1 <==\nsaid 1\n==> 3 echo Failed ExitCode:2 <==\nsaid 2\n"
    )
    assert daemon.ok("gjob", "log", "1,3", "--last", "0").count("==>") == 2
    assert daemon.ok("gjob", "redo", "--parsable", "g1", "--failed") == "4\n5\n"
    daemon.run("gjob", "wait", "4,5")
    table = daemon.ok("gqueue", "g4", "-f", "JOBID,PARAMS,EXIT").splitlines()
    assert [line.split() for line in table[1:]] == [["4", "x=1", "1"], ["5", "x=2", "2"]]
    assert daemon.ok("gjob", "redo", "--parsable", "1,2") == "6\n7\n"
    refused = daemon.run("gjob", "redo", "1", "--failed")
    assert refused.returncode == 1 and "none of these jobs ended as Failed" in refused.stderr
