"""A sweep or an array as one thing: its line in gqueue, its page, its figures in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.harness import Box, wait_until
from tests.process.test_gqueue import Terminal

# Reports a loss of twice its parameter; the job with 3 fails, and the one with 6 runs on.
SCRIPT = """
gflow report step=1 steps=2 loss=$(( $1 * 2 )) accuracy=$1
test "$1" = 6 && exec sleep 600
test "$1" != 3 || exit 7
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A sweep of which one job runs, one waits and the others have ended; an array; and a job."""
    box = Box(tmp_path_factory.mktemp("swept"))
    try:
        box.up("--simulate-gpus", "4x80G", "--cpus", "4")
        (box.root / "run.sh").write_text(SCRIPT)
        box.submit("--hold", "--name", "single", "true")
        words = ("--gpus", "1", "--max-concurrent", "1", "--name", "x{x}", "--param", "x=2,3,4,6,8")
        box.ok("gbatch", *words, "bash", str(box.root / "run.sh"), "{x}")
        box.submit("--array", "1-9%2", "--gpus", "1", "--name", "tasks", "sleep", "600")
        wait_until(lambda: box.job(5)["state"] == "Running" and box.job(5)["progress"])
        wait_until(lambda: box.job("7_2")["state"] == "Running")
        yield box
    finally:
        box.clean_up()


def listed(box: Box, query: str) -> str:
    return box.api("GET", f"/jobs?{query}", accept="text/plain")[1].decode()


def test_a_sweep_and_an_array_are_one_line_each_on_a_terminal(swept: Box) -> None:
    text = re.sub(r"\d\d:\d\d:\d\d", "TIME", listed(swept, "form=table&width=80"))
    assert text == (
        "JOBID  NAME    ST  TIME      NODES  NODELIST(REASON)\n"
        "1      single  H   -         0      (JobHeldUser)\n"
        "g2     x{x}    R   TIME  1      1R 1PD 2CD 1F [#####---] 70% TIME left\n"
        "7      tasks   R   TIME  1      2R 7PD [--------] 0%\n"
        "3 running, 9 waiting; 3 of 4 GPUs in use\n"
    )
    assert Terminal(swept, "gqueue", NO_COLOR="1").all().count("\r\n") == 5
    assert max(map(len, Terminal(swept, "gqueue", NO_COLOR="1").all().split("\r\n"))) <= 80


@pytest.mark.parametrize("words", [[], ["--expand"], ["-a", "-s", "R,PD,H"]])
def test_a_pipe_gets_a_line_for_each_job(swept: Box, words: list[str]) -> None:
    ids = [line.split()[0] for line in swept.ok("gqueue", *words).splitlines()[1:]]
    assert ids == ["1", "5", "6", "7_[3-9%2]", "7_1", "7_2"]


@pytest.mark.parametrize(
    "query",
    ["expand=1", "jobs=1-7", "states=R,PD,H", "format=JOBID", "sort=id", "limit=50", "names=*", "form=tree"],
)
def test_chosen_jobs_and_columns_are_not_collapsed(swept: Box, query: str) -> None:
    text = listed(swept, f"width=80&{query}")
    assert "g2" not in text and "7_1" in text


@pytest.mark.parametrize("words", [[], ["-a"], ["g2,7"], ["-s", "PD,R"], ["-r", "name"], ["--me"]])
def test_collapse_counts_the_whole_group_also_in_a_pipe(swept: Box, words: list[str]) -> None:
    table = swept.ok("gqueue", "--collapse", *words)
    (line,) = [line for line in table.splitlines() if line.startswith("g2 ")]
    assert "1R 1PD 2CD 1F [#####---] 70%" in line
    assert "7_" not in table
    assert swept.ok("gqueue", "--collapse", "-f", "JOBID,PROGRESS,GROUP", "g2").splitlines()[1].split() == [
        "g2", "70%", "g2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gqueue", "--collapse", "--expand"], "--collapse or --expand, not both"),
        (["gqueue", "--collapse", "--json"], "--collapse prints a plain table"),
        (["gqueue", "--collapse", "--tree"], "--collapse prints a plain table"),
        (["gqueue", "-r"], "Slurm's -r is --expand here"),
        (["gjob", "show", "g2", "--metric", "1+1"], "'1+1' cannot be the name of a metric"),
    ],
)
def test_bad_input_is_refused(swept: Box, words: list[str], says: str) -> None:
    done = swept.run(*words)
    assert done.returncode == 2 and says in done.stdout + done.stderr


def test_the_page_of_a_group(swept: Box) -> None:
    page = swept.ok("gjob", "show", "g2")
    assert page.startswith(
        "Group: g2\n"
        f"Name: x{{x}}\nUser: {swept.job(2)['user']}\n"
        "Jobs: 5 (1 running, 1 waiting, 2 finished, 1 failed)\n"
        "Progress: [#####################---------] 70%\n"
        "Time left: about "
    )
    assert "\nParameters: x=2,3,4,6,8\n" in page
    assert "\nBest loss: 4, job 2 (x=2, Finished)\nWorst loss: 12, job 5 (x=6, Running)\n" in page
    assert "\nFAILED  REASON      PARAMS\n3       ExitCode:7  x=3\n" in page
    table = page.partition("\nJOBID")[2].splitlines()
    assert table[0].split() == ["ST", "TIME", "PARAMS", "LOSS", "NODELIST(REASON)"]
    assert [line.split()[0] for line in table[1:]] == ["2", "3", "4", "5", "6"]
    other = swept.ok("gjob", "show", "g2", "--metric", "accuracy", "--highest")
    assert "\nBest accuracy: 6, job 5" in other and "\nWorst accuracy: 2, job 2" in other
    refused = swept.run("gjob", "show", "g2", "--metric", "f1")
    assert refused.returncode == 2 and "choose from: accuracy, loss" in refused.stderr


def test_the_page_of_an_array_has_the_figures_of_its_tasks(swept: Box) -> None:
    page = swept.ok("gjob", "show", "7")
    assert page.startswith("Job: 7\n") and "\nTasks: 2 running, 7 waiting (3-9)\n" in page
    assert "\nProgress: [------------------------------] 0%\n" in page
    assert [line.split()[0] for line in page.splitlines()[-2:]] == ["7_1", "7_2"]


def test_figures_in_json(swept: Box) -> None:
    shown = json.loads(swept.ok("gjob", "show", "--json", "g2"))
    assert [job["id"] for job in shown["jobs"]] == [2, 3, 4, 5, 6] and shown["total"] == 5
    status, group = swept.api("GET", "/groups/g2")
    left = {name: group.pop(name) for name in ("left_s", "ends_at", "started_at", "user")}
    assert status == 200 and None not in left.values()
    assert group == {
        "id": "g2", "name": "x{x}", "total": 5, "progress": 0.7, "finished_at": None, "metric": "loss",
        "counts": {"running": 1, "waiting": 1, "held": 0, "finished": 2, "failed": 1, "cancelled": 0,
                   "stopped_early": 0},
        "best": {"id": 2, "state": "Finished", "value": 4.0, "parameters": {"x": "2"}},
        "worst": {"id": 5, "state": "Running", "value": 12.0, "parameters": {"x": "6"}},
        "parameters": {"x": ["2", "3", "4", "6", "8"]},
        "failed_jobs": [
            {"id": 3, "state": "Failed", "reason": "ExitCode:7", "exit_code": 7, "parameters": {"x": "3"}}
        ],
    }  # fmt: skip
    assert shown["group"]["counts"] == group["counts"]
    assert swept.api("GET", "/groups/7")[1]["counts"]["waiting"] == 7
    assert json.loads(swept.ok("gjob", "show", "--json", "7"))["group"]["id"] == 7
    assert json.loads(swept.ok("gjob", "show", "--json", "1"))["group"] is None


@pytest.mark.parametrize(
    ("path", "status"), [("g5", 404), ("5", 404), ("g999", 404), ("x", 400), ("7_1", 400)]
)
def test_what_is_no_group_is_refused(swept: Box, path: str, status: int) -> None:
    assert swept.api("GET", f"/groups/{path}")[0] == status


def test_a_long_group_is_shown_whole_in_a_pipe_and_in_part_on_a_terminal(daemon: Box) -> None:
    daemon.ok("gbatch", "--hold", "--param", "a=1:40", "--param", "b=1:30", "true")
    text = daemon.api("GET", "/jobs/g1?width=80", accept="text/plain")[1].decode()
    assert "\nParameters: a=1,2,3,4,…,40 (40 values) b=1,2,3,4,…,30 (30 values)\n" in text
    assert text.endswith("\n(the first 20 of 1200; gjob results g1 lists all)\n") and text.count("\n") == 29
    assert daemon.ok("gjob", "show", "g1").count("JobHeldUser") == 1200
    shown = json.loads(daemon.ok("gjob", "show", "--json", "g1"))
    assert len(shown["jobs"]) == shown["total"] == shown["group"]["counts"]["held"] == 1200
    assert daemon.ok("gjob", "show", "1-1100").count("Job: ") == 1100
    done = daemon.run("gjob", "show", "1-1100,7777")
    assert done.returncode == 1 and "there is no job 7777" in done.stderr and not done.stdout


@pytest.mark.parametrize("query", ["", "all=1&"])
def test_rows_have_one_row_for_each_group_and_array(swept: Box, query: str) -> None:
    found = swept.api("GET", f"/jobs?form=rows&sort=id&{query}")[1]
    assert [row["group"] and row["group"]["id"] for row in found["rows"]] == [None, "g2", 7]
    single, sweep, array = found["rows"]
    assert single["job"]["name"] == "single" and found["next"] is None
    assert sweep["group"]["name"] == "x{x}" and sweep["group"]["progress"] == 0.7
    assert sweep["group"]["counts"] | {"stopped_early": 0} == {
        "running": 1, "waiting": 1, "held": 0, "finished": 2, "failed": 1, "cancelled": 0, "stopped_early": 0,
    }  # fmt: skip
    states = [(one["id"], one["state"]) for one in sweep["group"]["jobs"]]
    assert states[1] == (3, "Failed") and len(states) == 5
    assert array["group"]["total"] == 9 and [one["id"] for one in array["group"]["jobs"]] == ["7_1", "7_2"]


def test_pages_of_rows_follow_each_other(swept: Box) -> None:
    newest = swept.api("GET", "/jobs?form=rows&sort=-id&all=1&limit=1")[1]
    assert newest["rows"][0]["group"]["id"] == 7 and newest["next"]
    following = swept.api("GET", f"/jobs?form=rows&sort=-id&all=1&limit=5&after={newest['next']}")[1]
    assert [row["job"]["name"] for row in following["rows"]] == ["x8", "single"] and not following["next"]
    queue = swept.api("GET", "/jobs?form=rows&sort=-id&limit=1&offset=1")[1]
    assert queue["total"] == 3 and queue["jobs"] == 6 and queue["rows"][0]["group"]["id"] == "g2"
    for wrong in ("sort=name", "limit=0", "limit=501", "all=1&after=x"):
        assert swept.api("GET", f"/jobs?form=rows&{wrong}")[0] == 400, wrong
