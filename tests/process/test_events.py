"""Events as they happen, and events that a client missed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gflow.wire.events import EVENTS
from tests.harness import BIN, Box, wait_until


@contextmanager
def listening(box: Box, *words: str) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What `gflow events --json` has printed so far."""
    out = box.work / "events.jsonl"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [str(BIN / "gflow"), "events", "--json", *words], env=box.env, stdout=file, cwd=box.work
        )
    try:
        yield lambda: [json.loads(line) for line in out.read_text().splitlines()]
    finally:
        process.kill()
        process.wait()


def names(events: list[dict[str, Any]], job: Any) -> list[str]:
    return [event["event"] for event in events if event["job_id"] == job]


def test_events_of_a_job_are_complete(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    with listening(box, "--after", "0") as heard:
        job = box.submit("--gpus", "1", "true")
        box.finished(job)
        want = ["job_submitted", "job_started", "gpu_availability_changed", "job_completed"]
        wait_until(lambda: names(heard(), job) == [*want, "gpu_availability_changed"], what="its five events")
    started = next(event for event in heard() if event["event"] == "job_started")
    assert started["job"]["id"] == job
    assert started["job"]["gpu_ids"] == [0]
    numbers = [event["id"] for event in heard()]
    assert numbers == sorted(numbers)


def test_listener_gets_missed_events_across_a_restart(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    first = box.submit("true")
    box.finished(first)
    seen = json.loads(box.ok("gflow", "events", "--json", "--past", "--on", "job_completed", "-c", "1"))
    shown = box.ok("gflow", "events", "--past", "--on", "job_completed", "-c", "1")
    assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d job_completed 1 ", shown)
    box.kill9()
    box.up()
    second = box.submit("true")
    box.finished(second)
    text = box.ok("gflow", "events", "--json", "--after", str(seen["id"]), "--on", "job_submitted", "-c", "1")
    assert json.loads(text)["job_id"] == second


def test_a_listener_outlives_the_daemon(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    with listening(box, "--after", "0", "--on", "job_completed,daemon_started") as heard:
        first = box.submit("true")
        wait_until(lambda: names(heard(), first) == ["job_completed"], what="the first job")
        box.kill9()
        box.up()
        second = box.submit("true")
        wait_until(lambda: names(heard(), second) == ["job_completed"], what="the job of the next daemon")
    assert [event["event"] for event in heard()].count("daemon_started") == 2


def test_every_event_of_the_surface_fires(box: Box) -> None:
    box.up("--simulate-gpus", "2x80G")
    done = box.submit("--gpus", "1", "--memory", "100M", "true")
    box.finished(done)
    failed = box.submit("false")
    held = box.submit("--hold", "true")
    box.ok("gjob", "update", str(held), "--priority", "20")
    box.ok("gjob", "release", str(held))
    again = box.submit("--begin", "now+1h", "true")
    box.ok("gjob", "hold", str(again))
    box.ok("gcancel", str(again))
    late = box.submit("--time", "0:01", "sleep", "60")
    tried = box.submit("--max-retries", "1", "--retry-delay", "0", "false")
    back = box.submit(
        "--requeue", "--max-retries", "0", "bash", "-c", "[ -e once ] || { touch once; exit 75; }"
    )
    array = box.submit("--array", "1-2", "false")
    user = box.job(done)["user"]
    box.ok(
        "gctl", "reserve", "create", "--user", user, "--gpus", "1", "--start", "now+1h", "--duration", "1h"
    )
    box.ok("gctl", "reserve", "update", "1", "--duration", "2h")
    box.ok("gctl", "reserve", "cancel", "1")
    box.ok("gctl", "set-gpus", "0")
    box.ok("gctl", "drain", "--reason", "repair")
    for job in (failed, held, late, tried, back, array):
        box.finished(job)
    wanted = set(EVENTS) - NEEDS_MORE
    with listening(box, "--after", "0", "--on", ",".join(EVENTS)) as heard:
        wait_until(lambda: wanted <= {event["event"] for event in heard()}, what=f"all of {wanted}")


# Told when a shim is killed (test_a_lost_job), when a limit comes near, of real GPUs (test_gpus.py), of jobs
# that say how far they are (test_progress.py) or what their loss is (test_early_stop.py), and when a GPU
# reservation begins (test_quotas_and_reservations.py).
NEEDS_MORE = {
    "notification_failed", "zombie_job_detected", "job_gpu_memory", "job_warned", "job_gpu_idle",
    "job_gpu_used", "job_idle_limit", "gpu_health_changed", "job_progress", "job_reserved",
    "job_early_stop",
}  # fmt: skip


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("events=job_startd", "there is no event 'job_startd'"),
        ("after=x", "Last-Event-ID is a number, not 'x'"),
        ("job=999", "there is no job 999"),
    ],
)
def test_a_wrong_question_gets_one_sentence(box: Box, query: str, sentence: str) -> None:
    box.up("--simulate-gpus", "1x80G")
    status, answer = box.api("GET", f"/events?{query}")
    assert status in (400, 404)
    assert answer["title"] == sentence
