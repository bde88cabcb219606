"""The benchmark of ETAs runs, and asks for forecasts on a trace in which jobs have to wait."""

from __future__ import annotations

from random import Random

import pytest
from benchmarks import why

LIMIT_S = 3600


def swf_line(number: int, submit: int, duration: int, gpus: int) -> str:
    fields = [number, submit, 0, duration, gpus, duration, -1, gpus, LIMIT_S, -1, 1, number % 5]
    return " ".join(map(str, fields)) + " 1 1 -1 1 -1 -1\n"


def test_benchmark_asks_waiting_jobs_of_an_archive_trace(tmp_path, monkeypatch, capsys) -> None:
    random = Random(0)
    lines = [
        swf_line(n, 200 * n, random.randrange(60, 3000), random.choice((1, 1, 2, 4))) for n in range(1, 300)
    ]
    path = tmp_path / "archive.swf"
    path.write_text("".join(lines))
    monkeypatch.setattr("sys.argv", ["why", str(path), "--gpus", "8"])
    why.main()
    words = capsys.readouterr().out.split()
    assert words[:4] == ["archive", "on", "8,", "8"]
    asked, within = int(words[words.index("asked") - 1]), float(words[words.index("within") - 1].rstrip("%"))
    assert 50 < asked < 300, "only jobs that have to wait"
    assert within > 60


def test_start_outside_the_interval_is_no_hit() -> None:
    scores, start = why.Scores(), why.Start(expected=50.0, earliest=10.0, latest=100.0)
    for wait in (20.0, 100.0, 200.0):
        scores.add(why.Told(start, by_limits=150.0, plain=60.0), wait - 10.0, 10.0)
    scores.add(None, 5.0, 10.0)
    assert scores.hits == [True, True, False, False]
    assert scores.widths[:3] == [90.0] * 3
    assert [is_within for _, is_within, _ in scores.others["plain"]] == [True, False, False]
    assert scores.widths[3] == pytest.approx(float("inf"))
