"""The progress of jobs over time: points at growing intervals, written to a file of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gflow.core.ids import JobKey, job_key
from gflow.daemon.monitors import progress_history
from gflow.daemon.monitors.progress_history import POINTS, ProgressHistory
from gflow.store.progress_points import Point, delete_old_points, points_of, write_points

KEY = job_key(7)


class Reporting:
    """A job that reports; the history reads it as the engine would have it."""

    def __init__(self, path: Path) -> None:
        self.jobs: dict[JobKey, Any] = {}
        self.history = ProgressHistory(path, 7, self.jobs.get)

    def report(self, at: float, step: int = 0, attempt: int = 1, loss: float | None = 0.5) -> None:
        report = SimpleNamespace(at=at, step=step, loss=loss, samples_per_s=0.0, metrics={"accuracy": 0.9})
        self.jobs[KEY] = SimpleNamespace(label="7", attempt=attempt, progress_report=report)
        self.history.note(KEY)
        self.history.look()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.db"


def test_reports_become_points_in_order(path: Path) -> None:
    job = Reporting(path)
    for step in range(5):
        job.report(100.0 + step, step)
    job.history.flush()
    found = points_of(path, "7")
    assert [(point.at, point.step) for point in found] == [(100.0 + step, step) for step in range(5)]
    assert (found[0].loss, found[0].metrics) == (0.5, {"accuracy": 0.9})
    assert points_of(path, "8") == []


def test_interval_doubles_with_the_age_of_a_run_and_restarts_with_an_attempt(path: Path) -> None:
    job = Reporting(path)
    for second in range(4 * POINTS):
        job.report(1000.0 + second, second)
    job.report(9000.0, 0, attempt=2)
    job.report(9001.0, 1, attempt=2)
    job.history.flush()
    found = points_of(path, "7")
    first = [point.at for point in found if point.attempt == 1]
    assert first[: POINTS + 1] == [1000.0 + second for second in range(POINTS)] + [1001.0 + POINTS]
    assert len(first) < 2.6 * POINTS
    assert [point.at for point in found if point.attempt == 2] == [9000.0, 9001.0]


def test_job_that_ended_meanwhile_is_skipped(path: Path) -> None:
    job = Reporting(path)
    job.history.note(KEY)
    job.history.look()
    job.history.flush()
    assert points_of(path, "7") == []


def test_points_are_written_while_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_history, "LOOK_S", 0.01)
    monkeypatch.setattr(progress_history, "WRITE_S", 0.0)

    async def scenario() -> None:
        job = Reporting(path)
        task = asyncio.ensure_future(job.history.run())
        job.report(5.0)
        async with asyncio.timeout(10):
            while not points_of(path, "7"):
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(scenario())


def test_file_without_its_table_yet_has_no_points(path: Path) -> None:
    path.touch()
    assert points_of(path, "7") == []


def test_old_points_are_deleted_and_a_damaged_file_is_replaced(path: Path) -> None:
    points = [Point("7", 1, at, 1, None, 0.0, {}) for at in (0.0, 10 * 86400.0)]
    write_points(path, points)
    delete_old_points(path, 11 * 86400.0, 7)
    assert points_of(path, "7") == points[1:]
    path.write_bytes(b"no database" * 1000)
    write_points(path, points)
    assert points_of(path, "7") == points
