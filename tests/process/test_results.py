"""gjob results: one row for each job of a sweep, an array, or a list."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.harness import BIN, Box

TRAIN = f"""
[ {{lr}} = 0.3 ] && {{ echo lr too large; exit 3; }}
{BIN}/gflow report step=1 steps=1 loss={{lr}} state=7
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """A sweep of four jobs of which one fails (g1), an array (5), and jobs with hostile parameters (g6)."""
    box = Box(tmp_path_factory.mktemp("results"))
    try:
        box.up("--simulate-gpus", "2x80G", "--cpus", "4")
        box.ok("gbatch", "--param", "lr=0.4,0.3,0.1,0.2", "bash", "-c", TRAIN)
        box.submit("--array", "1-3", "exit $((GFLOW_ARRAY_TASK_ID - 1))")
        hostile = box.job_request(["true"], hold=True, param={"id": ["=1+1", 'a,"b"\n\x1b[31m']})
        assert box.api("POST", "/jobs", {"token": "x" * 16, "jobs": [hostile]})[0] == 201
        box.run("gjob", "wait", "g1")
        box.run("gjob", "wait", "5")
        yield box
    finally:
        box.clean_up()


def rows(box: Box, *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(box.ok("gjob", "results", *words, "--csv"))))


def test_a_row_for_each_job_of_a_sweep(trained: Box) -> None:
    table = trained.ok("gjob", "results", "g1", "-r", "loss").splitlines()
    assert table[0].split() == "JOBID lr loss metrics.state STATE EXIT TIME ATTEMPTS".split()
    assert [line.split()[0] for line in table[1:]] == ["3", "4", "1", "2"]
    assert table[-1].split()[:6] == ["2", "0.3", "-", "-", "Failed", "3"]
    best = rows(trained, "g1", "--sort=-loss")[0]
    assert (best["id"], best["loss"], best["metrics.state"], best["state"]) == ("1", "0.4", "7.0", "Finished")
    found = json.loads(trained.ok("gjob", "results", "g1", "-r", "loss", "--json"))
    assert found["total"] == 4
    assert found["results"][0]["parameters"] == {"lr": "0.1"}
    assert found["results"][0]["metrics"] == {"loss": 0.1, "state": 7.0}
    assert trained.ok("gjob", "results", "g1", "-o", "csv") == trained.ok("gjob", "results", "g1", "--csv")


def test_results_are_filtered_and_name_any_jobs(trained: Box) -> None:
    assert [row["id"] for row in rows(trained, "g1", "--failed")] == ["2"]
    assert [row["id"] for row in rows(trained, "1-4", "-s", "CD", "-r", "lr")] == ["3", "4", "1"]
    assert [(row["id"], row["exit_code"]) for row in rows(trained, "5")] == [
        ("5_1", "0"), ("5_2", "1"), ("5_3", "2"),
    ]  # fmt: skip
    assert [row["id"] for row in rows(trained, "5_[2-3],1", "2")] == ["1", "2", "5_2", "5_3"]


def test_hostile_parameters_are_safe(trained: Box) -> None:
    assert [row["parameters.id"] for row in rows(trained, "g6")] == ["'=1+1", 'a,"b"\\n\\x1b[31m']
    shown = trained.ok("gjob", "results", "g6")
    assert shown.count("\n") == 3 and "\x1b" not in shown
    exact = json.loads(trained.ok("gjob", "results", "g6", "--json"))["results"]
    assert [row["parameters"]["id"] for row in exact] == ["=1+1", 'a,"b"\n\x1b[31m']


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["g1", "-r", "nmae"], "unknown order 'nmae'"),
        (
            ["g1", "-r", "los"],
            "none of these jobs has the metric or parameter 'los'\ndid you mean loss?",
        ),
        (["g1", "-r", "-metrics.stat"], "did you mean state?"),
        (["g1", "-r", "accuracy"], "choose from: gpus, group, id, loss, lr,"),
        (["g1", "-o", "xml"], "unknown output format 'xml'"),
        (["g1", "-s", "odd"], "unknown state 'odd'"),
        ([], "no job is named"),
    ],
)
def test_bad_input_gets_one_sentence(trained: Box, words: list[str], says: str) -> None:
    refused = trained.run("gjob", "results", *words)
    assert refused.returncode == 2 and says in refused.stderr and refused.stderr.count("\n") == 2


def test_an_order_or_metric_that_no_job_has_is_refused(trained: Box) -> None:
    for words in (["gqueue", "g1", "-r", "los"], ["gjob", "show", "g1", "--metric", "los"]):
        refused = trained.run(*words)
        assert refused.returncode == 2 and "did you mean loss?" in refused.stderr, words
    assert "Best" in trained.ok("gjob", "show", "g1", "--metric", "state")
    assert trained.ok("gjob", "show", "g6", "--metric", "los"), "no job of g6 has reported yet"
    trained.ok("gqueue", "--names", "none", "-r", "los")


def test_a_large_sweep_is_complete(trained: Box) -> None:
    trained.ok("gbatch", "--hold", "--param", "i=1:1500", "true")
    assert [row["i"] for row in rows(trained, "g8", "-r", "-i")] == [str(i) for i in range(1500, 0, -1)]
    assert json.loads(trained.ok("gjob", "results", "g8", "--json"))["total"] == 1500
    shown = json.loads(trained.ok("gjob", "show", "g8", "--json"))
    assert shown["total"] == 1500 and shown["jobs"][-1]["id"] == 1507
    assert trained.ok("gjob", "log", "8-1100").count("==>") == 1093
