"""The command gstats."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.harness import Box, wait_until

FIGURES = {
    "total_jobs", "completed_jobs", "failed_jobs", "cancelled_jobs", "timeout_jobs", "running_jobs",
    "queued_jobs", "avg_wait_secs", "avg_runtime_secs", "total_gpu_hours", "jobs_with_gpus",
    "avg_gpus_per_job", "peak_gpu_usage", "success_rate",
}  # fmt: skip


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory):
    """Three jobs on four GPUs at once, later one; a failure, a cancelled job, a waiting one."""
    box = Box(tmp_path_factory.mktemp("used"))
    try:
        box.up("--simulate-gpus", "4x80G", "--cpus", "4")
        gate = box.root / "gate"
        wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
        first = [box.submit("--gpus", str(n), "--project", "vision", "bash", "-c", wait) for n in (1, 1, 2)]
        wait_until(lambda: all(box.job(number)["state"] == "Running" for number in first))
        gate.touch()
        for number in first:
            box.finished(number)
        box.finished(box.submit("--gpus", "1", "false"))
        box.ok("gcancel", str(box.submit("--hold", "true")))
        box.submit("--hold", "true")
        yield box
    finally:
        box.clean_up()


def test_gstats_figures(used: Box) -> None:
    stats = json.loads(used.ok("gstats", "--json"))
    assert stats.keys() >= FIGURES
    assert {name: stats[name] for name in FIGURES if name.endswith("_jobs")} == {
        "total_jobs": 6, "completed_jobs": 3, "failed_jobs": 1, "cancelled_jobs": 1, "timeout_jobs": 0,
        "running_jobs": 0, "queued_jobs": 1,
    }  # fmt: skip
    assert stats["peak_gpu_usage"] == 4  # at one moment; no single job had so many
    assert stats["success_rate"] == 0.75
    assert (stats["jobs_with_gpus"], stats["avg_gpus_per_job"]) == (4, 1.25)
    assert stats["simulated"] is True and stats["left_out_jobs"] == 0
    assert len(stats["top_jobs"]) == 4
    assert {group["project"] for group in stats["by_project"]} == {"vision", None}


def test_the_page(used: Box) -> None:
    text = used.ok("gstats")
    for line in (
        "Jobs:                    6",
        "Success rate:            75.0 %",
        "Peak GPUs in use:        4",
    ):
        assert line in text.splitlines()
    assert "(on simulated GPUs: no real device was used)" in text
    assert "Longest jobs\nJOBID  NAME" in text
    assert "By project\nPROJECT  JOBS" in text
    assert "By user" not in text


def test_csv_has_a_row_for_all_and_for_each(used: Box) -> None:
    rows = list(csv.DictReader(io.StringIO(used.ok("gstats", "-a", "-o", "csv"))))
    assert [(row["scope"], row["name"], row["total_jobs"]) for row in rows[:1]] == [("all", "", "6")]
    assert [row["scope"] for row in rows] == ["all", "user", "project", "project"]
    assert rows[0].keys() - {"scope", "name"} == FIGURES


def test_chart_and_report_show_the_usage_of_today(used: Box) -> None:
    text = used.ok("gstats", "--chart")
    assert text.startswith("GPU-hours on simulated GPUs of ") and "█" in text
    assert "PROJECT  GPU-HOURS" in text and "vision" in text
    days = json.loads(used.ok("gstats", "--chart", "--json", "--since", "today"))
    assert len(days["days"]) == 1 and days["total"]["started_jobs"] == 4
    assert days["total"]["gpu_hours"] > 0 == days["total"]["measured_gpu_hours"]
    assert used.ok("gstats", "--chart", "-o", "csv").startswith("day,user,project,gpu_hours")
    assert used.ok("gstats", "--html", "usage report.html", "-a") == "wrote usage report.html\n"
    page = (used.work / "usage report.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and page.count("<svg") == 2 and "vision" in page


def test_gstats_of_other_users_and_times(used: Box) -> None:
    other = json.loads(used.ok("gstats", "-u", "nobody", "--json"))
    assert (other["user"], other["total_jobs"], other["success_rate"]) == ("nobody", 0, None)
    later = json.loads(used.ok("gstats", "-t", "2099-01-01", "-o", "json"))
    assert (later["total_jobs"], later["total_gpu_hours"], later["peak_gpu_usage"]) == (1, 0.0, 0)
    assert later["since"].startswith("209")
    assert json.loads(used.ok("gstats", "-t", "today", "--json"))["total_jobs"] == 6


def test_simulated_jobs_are_left_out_where_gpus_are_real_or_none(used: Box) -> None:
    used.down()
    used.up("--cpus", "2")
    stats = json.loads(used.ok("gstats", "--json"))
    assert (stats["simulated"], stats["left_out_jobs"], stats["total_jobs"]) == (False, 4, 2)
    assert stats["peak_gpu_usage"] == 0
    assert "(4 jobs on simulated GPUs are not counted)" in used.ok("gstats")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("-o xml", "unknown output format 'xml'\nchoose from: table, json, csv"),
        ("-o yaml", "unknown output format 'yaml'"),
        ("--since soon", "--since does not understand 'soon'"),
        ("-u ann -a", "--user or --all-users, not both"),
        ("ann", "unexpected argument 'ann'"),
        ("--usr ann", "did you mean --user?"),
        ("--chart --html x.html", "--chart or --html, not both"),
        ("--html x.html -o csv", "--html writes a page and has no other format"),
        ("--chart --since 500d", "the period has more than 366 days"),
        ("--chart --since 2099-01-01", "the period begins in the future"),
        ("--html no/such/folder/x.html", "x.html cannot be written: No such file or directory"),
    ],
)
def test_bad_input(used: Box, words, says) -> None:
    done = used.run("gstats", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("query", ["form=xml", "since=x", "width=-1"])
def test_bad_queries(used: Box, query) -> None:
    assert used.api("GET", f"/stats?{query}")[0] == 400


def test_gstats_help_has_examples(used: Box) -> None:
    text = used.ok("gstats", "--help")
    assert text.startswith("usage: gstats") and "examples:" in text
