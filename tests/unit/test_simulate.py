"""Traces of every make, and what is measured of a replay."""

from __future__ import annotations

import json
import sys

import pytest

from gflow.cli.tools import simulate
from gflow.errors import Refused, UsageError
from gflow.simulate.metrics import fairness, gpus_in_use, measure, quantile, thin_out, wait_distribution
from gflow.simulate.replay import POLICIES, Replay, ReplayedJob
from gflow.simulate.trace import Entry, read_trace

PHILLY = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "2017-10-09 07:01:55,66.0,1,66.0,a\n"
    "2017-10-09 07:00:00,30,8,0,b\n"
)
OPENB = "name,num_gpu,creation_time,deletion_time,scheduled_time\np,1,0,100,40\nq,1,5,,\n"
SACCT = (
    "JobID|User|JobName|Submit|Elapsed|AllocTRES|Timelimit\n"
    "1|ann|train|2024-01-01T00:00:00|1-00:00:10|billing=1,gres/gpu=4,node=1|2-00:00:00\n"
    "2|bob|cpu|2024-01-01T00:00:05|00:10:00|cpu=4|UNLIMITED\n"
)


@pytest.fixture
def trace(tmp_path):
    def write(text):
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return write


def test_traces_of_known_makes_need_no_mapping(trace):
    first, second = read_trace(trace(PHILLY), {}, {})
    assert (first.gpus, second.duration, second.submit - first.submit) == (8, 66.0, 115.0)
    assert read_trace(trace(OPENB), {}, {}) == [Entry(0.0, 60.0, 1)]
    (only,) = read_trace(trace(SACCT), {}, {})
    assert only[1:] == (86410.0, 4, "ann", "train", 172800)


SWF = (
    "; UnixStartTime: 1027839845\n"
    "\n"
    "  1  0  30  3600 30 3590 -1 -1 37980 -1 1  7 1 -1 -1 1 -1 -1\n"
    "  2 10   5   120  4  119 -1  2    -1 -1 1  8 1  3 -1 1 -1 -1\n"
    "  3 20  -1    -1  4   -1 -1  4    60 -1 5  8 1  3 -1 1 -1 -1\n"
)


def test_standard_workload_format_is_read(tmp_path):
    path = tmp_path / "archive.swf"
    path.write_text(SWF)
    assert read_trace(path, {}, {}) == [
        Entry(0.0, 3600.0, 30, "7", "", 37980),
        Entry(10.0, 120.0, 2, "8", "3"),
    ]
    assert len(read_trace(path, {}, {"user": "8"})) == 1
    path.write_text("1 2 3\n")
    with pytest.raises(Refused, match="line 1 of the trace has 3 fields, and 18 are expected"):
        read_trace(path, {}, {})


def test_rows_are_chosen_and_columns_mapped(trace):
    path = trace("when;how long;n\n10;20;2\n")
    mapping = {"submit": "when", "duration": "how long", "gpus": "n"}
    assert read_trace(path, mapping, {}) == [Entry(10.0, 20.0, 2)]
    assert len(read_trace(trace(PHILLY), {}, {"cluster": "b"})) == 1


@pytest.mark.parametrize(
    "text, mapping, where",
    [
        ("a,b\n1,2\n", {}, {}),
        (PHILLY, {"submit": "timestamp"}, {}),
        (PHILLY, {"submit": "when", "duration": "duration"}, {}),
        (PHILLY, {"sbmit": "timestamp", "duration": "duration"}, {}),
        (PHILLY, {}, {"clutser": "a"}),
    ],
)
def test_columns_that_are_not_there_are_refused(trace, text, mapping, where):
    with pytest.raises(UsageError):
        read_trace(trace(text), mapping, where)


def test_unreadable_trace_is_refused_with_its_line(trace, tmp_path):
    with pytest.raises(Refused, match="line 3"):
        read_trace(trace(PHILLY.replace("07:00:00,30", "07:00:00,half an hour")), {}, {})
    with pytest.raises(Refused, match="cannot be read"):
        read_trace(tmp_path / "none.csv", {}, {})


def test_replay_figures():
    ran = [ReplayedJob(Entry(0.0, 100.0, 1, "ann"), 0.0), ReplayedJob(Entry(0.0, 100.0, 8, "bob"), 100.0)]
    found = measure(ran, 8, 8)
    assert (found["mean_wait_s"], found["max_wait_s"], found["makespan_s"]) == (50.0, 100.0, 200.0)
    assert found["mean_slowdown"] == 1.5
    assert found["utilisation"] == 900 / 1600
    assert found["wide"]["max_wait_s"] == 100.0
    assert fairness(ran) == pytest.approx(0.9)
    assert (quantile([], 0.5), quantile([3.0, 1.0, 2.0], 0.5), quantile([1.0, 2.0], 0.99)) == (0.0, 2.0, 2.0)


def test_policies_differ_where_they_should():
    """A wide job behind a narrow one, and a long and a short narrow one behind it."""
    entries = [Entry(0.0, 100.0, 1), Entry(1.0, 50.0, 2), Entry(2.0, 500.0, 1), Entry(3.0, 90.0, 1)]

    def starts(name, exact=False):
        replay = Replay(entries, 2, POLICIES[name][1], exact=exact)
        replay.run()
        return replay.starts

    assert starts("fifo") == [0.0, 100.0, 150.0, 150.0]
    assert starts("greedy") == [0.0, 502.0, 2.0, 100.0]
    assert starts("easy-perfect", exact=True) == [0.0, 100.0, 150.0, 3.0]


def test_json_answer_has_the_documented_keys(trace, capsys):
    assert simulate.run([str(trace(PHILLY)), "--pool", "8", "--policy", "greedy,ours", "--json"]) == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert list(policies) == ["greedy", "ours"]
    wanted = {"mean_wait_s", "p95_wait_s", "p99_wait_s", "mean_slowdown", "utilisation", "wide"}
    assert wanted <= policies["ours"].keys()
    assert simulate.run([str(trace(PHILLY))]) == 0
    assert capsys.readouterr().out.startswith("2 jobs on 8 GPUs\nPOLICY")


@pytest.mark.parametrize(
    "words", [[], ["x", "--policy", "best"], ["x", "--load", "much"], ["x", "--map", "submit"]]
)
def test_bad_simulate_options_are_refused(words):
    with pytest.raises((UsageError, Refused)):
        simulate.run(words)


def test_a_replay_is_the_same_every_time():
    entries = [Entry(i * 7.0, 50.0 + i * 37 % 200, 1 + i % 3) for i in range(200)]
    first, second = (Replay(entries, 4, POLICIES["ours"][1]) for _ in range(2))
    assert first.run() == second.run()


# ---------------------------------------------------------------- pictures


def test_a_picture_is_drawn(trace, tmp_path, capsys):
    assert (
        simulate.run([str(trace(PHILLY)), "--policy", "greedy,ours", "--plot", str(tmp_path / "p.png")]) == 0
    )
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith("2 jobs on 8 GPUs")


def test_the_curves_of_a_picture():
    ran = [ReplayedJob(Entry(0.0, 86400.0, 1), 0.0), ReplayedJob(Entry(0.0, 86400.0, 7), 86400.0)]
    assert gpus_in_use(ran) == [(0.0, 0), (0.0, 1), (1.0, 0), (1.0, 7), (2.0, 0)]
    assert wait_distribution(ran) == [(1 / 60, 1.0), (24.0, 0.5)]
    points = [(float(i), i) for i in range(10_001)]
    assert len(thin_out(points)) <= 2001 and thin_out(points)[-1] == points[-1]


def test_unusable_plot_file_is_refused_before_replay(trace, tmp_path, monkeypatch):
    for name in ("p.txt", "nowhere/p.png"):
        with pytest.raises(UsageError, match="--plot"):
            simulate.run([str(trace(PHILLY)), "--plot", str(tmp_path / name)])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Refused, match="matplotlib"):
        simulate.run([str(trace(PHILLY)), "--plot", str(tmp_path / "p.png")])
