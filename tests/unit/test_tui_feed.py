"""The feed of gflow top: what it fetches, when, and what it keeps."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gflow.errors import Unreachable
from gflow.tui import queue_feed
from gflow.tui.queue_feed import LOOK_S, MOST_ENDED, QUIET_S, REST, QueueFeed
from tests.unit.test_tui_lines import gpu, job


class Daemon:
    """Answers of a daemon, without one."""

    def __init__(self) -> None:
        self.running: list[dict[str, Any]] = []
        self.waiting: list[dict[str, Any]] = []
        self.more = self.looks_at_starts = 0
        self.gpus = [gpu(utilisation=None)]
        del self.gpus[0]["utilisation"]
        self.is_away, self.delay_s = False, 0.0

    def get(self, path: str, **query: str) -> Any:
        if self.is_away:
            raise Unreachable()
        time.sleep(self.delay_s)
        if path == "/status":
            return {"version": "1.0", "running": 0, "waiting": 777}
        if path == "/info":
            return {"gpus": self.gpus, "drained": False, "reason": None}
        if path == "/starts":
            self.looks_at_starts += 1
            return {"starts": [{"id": 1, "expected_at": "2026-01-01T00:00:00Z"}], "total": 1}
        if query.get("states") == "Queued,Hold":
            return {"jobs": self.waiting, "total": len(self.waiting) + self.more}
        jobs = self.running if query.get("states") == "Running" else []
        return {"jobs": jobs, "total": len(jobs)}


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    made = Daemon()
    monkeypatch.setattr(queue_feed.http, "get", made.get)
    return made


def test_the_last_view_stays_while_the_daemon_is_away(daemon: Daemon) -> None:
    feed = QueueFeed()
    daemon.running = [job(1, "Running")]
    assert feed.load().listing.running_total == 1 and feed.load().version == "1.0"
    daemon.is_away = True
    away = feed.load()
    assert away.away and away.listing.running_total == 1
    assert feed.load().away == away.away, "since the first failure"
    daemon.is_away = False
    assert feed.load().away == ""


def test_the_total_has_every_task_also_of_arrays_that_are_not_listed(daemon: Daemon) -> None:
    daemon.waiting = [job(1), job(2, array_id=2, tasks={"pending": "1-4", "waiting": 4})]
    feed = QueueFeed()
    assert feed.load().listing.waiting_total == 5
    daemon.more = 3
    assert feed.load().listing.waiting_total == 777, "the total of the daemon"


def test_expected_starts_are_asked_for_a_wide_screen_and_a_short_queue(daemon: Daemon) -> None:
    feed = QueueFeed()
    feed.has_starts = True
    feed.load()
    daemon.waiting, daemon.more = [job(1), job(2)], 1
    feed.load()
    daemon.more, feed.has_starts = 0, False
    feed.load()
    assert daemon.looks_at_starts == 0
    feed.has_starts = True
    starts = [one["expected_at"] for one in feed.load().listing.waiting]
    assert starts == ["2026-01-01T00:00:00Z", None]


def test_looks_are_rare_if_nothing_changes_by_itself_or_a_look_takes_long(daemon: Daemon) -> None:
    feed = QueueFeed()
    feed.load()
    assert feed.pause_s() == QUIET_S
    daemon.running = [job(1, "Running")]
    feed.load()
    assert feed.pause_s() == LOOK_S
    daemon.delay_s = 0.2
    feed.load()
    assert feed.pause_s() >= REST * 3 * 0.2


def test_events_add_ended_jobs_but_not_the_records_of_arrays(daemon: Daemon) -> None:
    feed = QueueFeed()
    feed.load()
    for number in range(1, MOST_ENDED + 3):
        feed.note({"event": "job_completed", "job": job(number, "Finished")})
    feed.note({"event": "job_completed", "job": job(500, "Finished", tasks={"pending": ""})})
    feed.note({"event": "job_started", "job": job(501, "Running")})
    feed.note({"event": "connected"})
    ended = [one["id"] for one in feed.load().listing.ended]
    assert len(ended) == MOST_ENDED and ended[0] == MOST_ENDED + 2, "the newest first"
