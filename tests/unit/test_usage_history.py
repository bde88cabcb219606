"""Usage over time: counted by day, drawn as a chart, written as a page."""

from __future__ import annotations

import time
import xml.etree.ElementTree as xml
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gflow.core.effects import Ran
from gflow.core.ids import job_key
from gflow.core.queries.usage_report import DayUsage, Question, Statistics, Usage, UsedGpus
from gflow.store.port import Changes
from gflow.store.reader import Reader
from gflow.store.samples import Batch, Mean, OfJob, Samples
from gflow.store.sqlite import SqliteStore
from gflow.store.usage_history import idle_jobs, usage_by_day
from gflow.text.usage_chart import usage_chart, usage_days_csv
from gflow.text.usage_html import GRID, report_html, round_up
from gflow.wire.answers.statistics import statistics_view
from gflow.wire.answers.usage_days import UsageDaysAnswer, usage_days_view

from .builders import ended, job, running

# Local time, of whatever zone.
MIDNIGHT = time.mktime((2026, 12, 24, 0, 0, 0, 0, 0, -1))
NOW = MIDNIGHT + 43_200
DAY, HOUR = 86_400, 3600
HOSTILE = "<script>alert(1)</script>\x1b[31m"


def question(**fields: Any) -> Question:
    return Question(**{"now": NOW, "boot": NOW - MIDNIGHT, "since": MIDNIGHT - 2 * DAY} | fields)


def ran(number: int, start: float, end: float, *gpu_ids: int, **fields: Any) -> Any:
    """A job that ran from `start` to `end`, in seconds after midnight, and was submitted an hour before."""
    return ended(
        number, gpus=len(gpu_ids), gpu_ids=gpu_ids, attempt=fields.pop("attempt", 1),
        submitted_at=MIDNIGHT + start - HOUR, started_at=MIDNIGHT + start, finished_at=MIDNIGHT + end,
        **fields,
    )  # fmt: skip


@pytest.fixture
def count(tmp_path: Path):
    def count(
        *jobs: Any,
        attempts: Any = (),
        busy: dict[str, float] | None = None,
        most_idle: int = 0,
        **asked: Any,
    ) -> Any:
        store = SqliteStore(tmp_path / "jobs.db")
        store.commit(Changes(jobs={one.key: one for one in jobs}, attempts=list(attempts)))
        samples = Samples(tmp_path / "samples.db")
        totals = [
            OfJob(name, 1, gpu, Mean(int(MIDNIGHT), 100, share, 100, 1, None, None, None, 0))
            for name, share in (busy or {}).items()
            for gpu in (0, 1)
        ]
        samples.write(Batch([], [], totals))
        samples.close()
        reader = Reader(tmp_path / "jobs.db")
        try:
            if most_idle:
                return idle_jobs(reader, question(**asked), tmp_path / "samples.db", most_idle)
            return usage_by_day(reader, question(**asked), tmp_path / "samples.db")
        finally:
            reader.close()
            store.close()

    return count


def test_a_run_across_midnight_counts_on_both_days_with_its_utilisation(count: Any) -> None:
    days = count(
        ran(1, -2 * HOUR, HOUR, 0, 1, project="p"),
        ran(2, HOUR, 2 * HOUR, 0, user="bob"),
        busy={"1": 50.0},
    )
    assert [round(day.start - MIDNIGHT) for day in days] == [-2 * DAY, -DAY, 0]
    assert days[0].used == {}
    assert days[1].used == {("ann", "p"): UsedGpus(4 * HOUR, 4 * HOUR, 2 * HOUR)}
    assert days[2].used["ann", "p"] == UsedGpus(2 * HOUR, 2 * HOUR, HOUR)
    assert days[2].used["bob", ""] == UsedGpus(HOUR, 0, 0), "without samples nothing is measured"
    assert days[1].waits_s == {("ann", "p"): [HOUR]} and days[2].waits_s == {("bob", ""): [HOUR]}


def test_jobs_that_waste_their_gpus_are_listed_by_unused_time(count: Any) -> None:
    found = count(
        ran(1, 0, HOUR, 0, 1), ran(2, 0, HOUR, 2, name="jupyter"), ran(3, 0, 8 * HOUR, 3), ran(4, 0, HOUR, 4),
        busy={"1": 10.0, "2": 0.0, "3": 80.0}, most_idle=5,
    )  # fmt: skip
    assert [(one.key, one.name, round(one.used.idle_s / HOUR, 2)) for one in found] == [
        (job_key(1), "job-1", 1.8),
        (job_key(2), "jupyter", 1.0),
    ]


def test_earlier_attempts_count_and_the_wait_ends_with_the_first(count: Any) -> None:
    first = Ran(
        key=job_key(1), attempt=1, started_at=MIDNIGHT - DAY, finished_at=MIDNIGHT - DAY + HOUR,
        gpu_ids=(0,), ran_s=HOUR,
    )  # fmt: skip
    again = ran(1, HOUR, 2 * HOUR, 0, attempt=2)
    again.submitted_at = MIDNIGHT - DAY - 60
    days = count(again, attempts=[first])
    assert [sum(use.gpu_s for use in day.used.values()) for day in days] == [0, HOUR, HOUR]
    assert [sum(map(len, day.waits_s.values())) for day in days] == [0, 1, 0]
    assert days[1].waits_s["ann", ""] == [60]


def test_running_jobs_count_until_now_and_waiting_or_older_ones_do_not(count: Any) -> None:
    lives = running(1, 0)
    lives.started_at, lives.started_boot = NOW - HOUR, NOW - MIDNIGHT - HOUR
    days = count(lives, job(2, gpus=4), ran(3, -9 * DAY, -8 * DAY, 0), ran(4, -3 * DAY, -DAY, 1))
    assert [sum(use.gpu_s for use in day.used.values()) for day in days] == [DAY, 0, HOUR]


def test_other_users_and_the_other_kind_of_gpus_are_left_out(count: Any) -> None:
    jobs = ran(1, 0, HOUR, 0), ran(2, 0, HOUR, 1, user="bob"), ran(3, 0, HOUR, 2, simulated=True)
    assert count(*jobs, user="bob")[2].used.keys() == {("bob", "")}


def answer(days: int = 3, users: tuple[str, ...] = ("ann", "bob")) -> UsageDaysAnswer:
    found = []
    for at in range(days):
        used = {(user, "p"): UsedGpus(HOUR * (place + 1), HOUR, HOUR / 2) for place, user in enumerate(users)}
        found.append(DayUsage(MIDNIGHT + (at - days + 1) * DAY, used, {(users[0], "p"): [60.0, 120.0]}))
    return usage_days_view(question(since=MIDNIGHT - (days - 1) * DAY), found, 4)


def test_the_answer_sums_days_users_and_projects() -> None:
    data = answer()
    assert [day.day for day in data.days] == ["2026-12-22", "2026-12-23", "2026-12-24"]
    assert data.days[0].gpu_hours == 3 and data.total.gpu_hours == 9
    assert [(one.name, one.gpu_hours) for one in data.by_user] == [("bob", 6.0), ("ann", 3.0)]
    assert data.by_project[0].efficiency == 0.5
    assert (data.total.started_jobs, data.total.median_wait_secs, data.total.p90_wait_secs) == (6, 90, 120)


def test_the_chart_has_a_bar_for_each_day_that_fits_the_terminal() -> None:
    for columns in (60, 80, 120):
        text = usage_chart(answer(), columns)
        lines = text.splitlines()
        assert lines[0] == "GPU-hours of all users, 2026-12-22 to 2026-12-24"
        assert lines[2].startswith("2026-12-22 Tue") and "  50 %" in lines[2] and "00:01:30" in lines[2]
        bar = lines[2].rpartition(" ")[2]
        assert abs(bar.count("█") - 2 * bar.count("▓")) <= 1 and max(map(len, lines[1:5])) <= columns
    assert "█ bob  ▓ ann\n" in text
    assert "USER  GPU-HOURS  BUSY" in text and "PROJECT  GPU-HOURS" in text


def test_the_chart_escapes_names_and_sums_further_users_and_long_periods() -> None:
    text = usage_chart(answer(days=100, users=(HOSTILE, "a", "b", "c", "d")), 80)
    assert "\x1b" not in text and "░ others" in text
    assert ", by week\n" in text and text.count("2026-") <= 20


def test_an_empty_period_is_one_sentence() -> None:
    data = usage_days_view(question(user="ann"), [DayUsage(MIDNIGHT, {}, {})], 4)
    assert usage_chart(data) == "No job of ann ran since 2026-12-24.\n"


def test_csv_has_a_row_for_each_day_user_and_project() -> None:
    lines = usage_days_csv(answer()).splitlines()
    assert lines[0] == "day,user,project,gpu_hours,measured_gpu_hours,busy_gpu_hours"
    assert lines[1] == "2026-12-22,ann,p,1.0,1.0,0.5" and len(lines) == 7


class Tags(HTMLParser):
    """All tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes


def test_the_report_runs_nothing_loads_nothing_and_escapes_names() -> None:
    data = answer(days=30, users=(HOSTILE, "bob"))
    totals = Statistics(Usage(total=1), {HOSTILE: Usage(total=1)}, {HOSTILE: Usage(total=1)}, [], 4, 0)
    page = report_html(statistics_view(question(), totals), data, f"host{HOSTILE}", "2026-12-24 12:00")
    found = Tags(page)
    assert "script" not in found.tags and found.tags.count("svg") == 3
    names = {name for name, _ in found.attributes}
    assert not names & {"src", "href", "onload", "onclick"} and "url(" not in page
    assert "default-src 'none'" in page
    assert "&lt;script&gt;" in page
    for chart in page.split("<svg")[1:]:
        root = xml.fromstring("<svg" + chart.partition("</svg>")[0].replace("\x1b", "") + "</svg>")
        for bar in root.iter("rect"):
            assert float(bar.get("height", "-1")) >= 0 and float(bar.get("x", "0")) > 0


@pytest.mark.parametrize(("most", "top"), [(107, 120), (3.9, 4), (0, 0.04), (1, 1), (5e9, 5e9)])
def test_axes_end_at_round_numbers(most: float, top: float) -> None:
    from gflow.text.usage_html import DECIMAL

    assert round_up(most, DECIMAL) == pytest.approx(top)
    assert GRID == 4
