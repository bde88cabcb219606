"""Traces of every make, and what is measured of a replay."""

from __future__ import annotations

import json
import sys

import pytest

from gflow import __version__
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


def replayed(entry, start):
    return ReplayedJob(entry, start, start + entry.duration)


def test_traces_of_known_makes_need_no_mapping(trace):
    first, second = read_trace(trace(PHILLY), {}, {})
    assert (first.gpus, second.duration, second.submit - first.submit) == (8, 66.0, 115.0)
    assert read_trace(trace(OPENB), {}, {}) == [Entry(0.0, 60.0, 1)]
    (only,) = read_trace(trace(SACCT), {}, {})
    assert only[1:6] == (86410.0, 4, "ann", "train", 172800)


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


def test_times_have_the_unit_that_is_given(trace):
    path = trace("t,d,a:ms,l\n2,1500,500,3\n")
    mapping = {"submit": "t:min", "duration": "d:ms", "limit": "l:h"}
    assert read_trace(path, mapping, {}) == [Entry(120.0, 1.5, 1, limit=10800)]
    mapping = {"submit": "t", "duration": "a:ms"}
    assert read_trace(path, mapping, {}) == [Entry(2.0, 500.0, 1)], "a column may be called so"
    with pytest.raises(Refused, match="line 2"):
        read_trace(trace("t,d\n1,00:10:00\n"), {"submit": "t", "duration": "d:ms"}, {})
    with pytest.raises(UsageError, match="no unit 'parsec'"):
        read_trace(path, {"submit": "t", "duration": "d:parsec"}, {})


def test_priority_and_preemptible_jobs_are_read(trace):
    path = trace("t,d,p,qos,pre\n1,9,20,BE,no\n2,9,,LS,True\n")
    times = {"submit": "t", "duration": "d", "priority": "p"}
    first, second = read_trace(path, {**times, "preemptible": "qos:BE"}, {})
    assert (first.priority, first.preemptible, second.priority, second.preemptible) == (20, True, 10, False)
    first, second = read_trace(path, {**times, "preemptible": "pre"}, {})
    assert (first.preemptible, second.preemptible) == (False, True)


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
    ran = [replayed(Entry(0.0, 100.0, 1, "ann"), 0.0), replayed(Entry(0.0, 100.0, 8, "bob"), 100.0)]
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


@pytest.mark.parametrize(
    ("resumes", "end", "lost"),
    [(False, 340.0, 40.0), (True, 300.0, 0.0)],
)
def test_preempted_job_runs_again(resumes, end, lost):
    """A wide preemptible job, and an ordinary one that comes 40 seconds later and runs for 200."""
    entries = [Entry(0.0, 100.0, 2, "ann", preemptible=True), Entry(40.0, 200.0, 1, "bob")]
    first, second = Replay(entries, 2, POLICIES["ours"][1], resumes=resumes).run()
    assert second.runs == ((40.0, 240.0),)
    assert first.runs == ((0.0, 40.0), (240.0, end))
    assert (first.wait_s, second.wait_s) == (end - 100, 0.0)
    found = measure([first, second], 2, 2)
    assert (found["preemptions"], found["lost_gpu_s"], found["makespan_s"]) == (1, 2 * lost, end)
    assert found["wide"]["max_wait_s"] == end - 100
    assert gpus_in_use([first, second])[-1][1] == 0
    assert max(used for _, used in gpus_in_use([first, second])) == 2


def test_job_is_preempted_by_a_higher_priority_until_all_are_over():
    entries = [
        Entry(i * 10.0, 25.0 + i % 7, 1 + i % 2, "abc"[i % 3], preemptible=i % 3 > 0) for i in range(60)
    ]
    entries += [Entry(i * 50.0 + 3, 30.0, 2, "dan", priority=20) for i in range(10)]
    ran = Replay(sorted(entries), 3, POLICIES["ours"][1]).run()
    assert any(len(one.preempted) > 1 for one in ran) and all(one.end > one.start > 0 for one in ran[1:])
    changes = sorted((at, more) for one in ran for a, b in one.runs for at, more in ((a, 1), (b, -1)))
    assert sum(more for _, more in changes) == 0
    use = [used for _, used in gpus_in_use(ran)]
    assert max(use) == 3 and min(use) == 0, "never more GPUs than there are"


def test_notes_say_what_makes_figures_doubtful(trace, capsys):
    path = trace("t,d,l\n" + "".join(f"{i},{i}000000,\n" for i in range(1, 20)))
    assert simulate.run([str(path), "--map", "submit=t,duration=d,limit=l", "--pool", "1"]) == 0
    text = capsys.readouterr().out
    assert "easy: no job of the trace has a time limit, so it equals greedy" in text
    assert "Are all times in seconds?" in text
    greedy, easy = (line.split()[1:] for line in text.splitlines()[2:4])
    assert greedy == easy, "as the note says"
    words = ["--map", "submit=t,duration=d:ms", "--pool", "1", "--limits"]
    assert simulate.run([str(path), *words]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5, "no note"


def test_json_answer_says_how_to_repeat_it(trace, capsys):
    words = ["--pool", "8", "--load", "0.5", "--seed", "3", "--jitter", "60", "--limits", "--policy", "easy"]
    assert simulate.run([str(trace(PHILLY)), *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trace"].endswith("trace.csv") and found["version"] == __version__
    assert [found[name] for name in ("load", "seed", "jitter", "limits", "with_limit")] == [
        0.5,
        3,
        60,
        True,
        1,
    ]
    assert found["offered_load"] > 0 and found["notes"] == []


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
    ran = [replayed(Entry(0.0, 86400.0, 1), 0.0), replayed(Entry(0.0, 86400.0, 7), 86400.0)]
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
