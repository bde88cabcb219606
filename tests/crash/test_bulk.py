"""Killed in the middle of what is done in parts: a submission is all there or not at all, and what was
begun to be done to jobs is done to all of them."""

from __future__ import annotations

import http.client
from typing import Any

import pytest

from tests.harness import Box, wait_until

FLAGS = ("--cpus", "1")
MANY = 350
BEFORE = ("bulk.opened", "bulk.staged", "bulk.staged:3")
AFTER = ("bulk.closed", "bulk.arrived", "bulk.arrived:3")


def submission(box: Box) -> dict[str, Any]:
    jobs = [box.job_request(["sleep", str(1000 + number)]) for number in range(MANY)]
    return {"token": "the-same-token", "jobs": jobs}


def ask_in_vain(box: Box, path: str, body: dict[str, Any]) -> None:
    """The daemon dies before it answers."""
    with pytest.raises((OSError, http.client.HTTPException)):
        box.api("POST", path, body)
    assert box.daemon is not None
    assert box.daemon.wait(30) == -9


def stories(box: Box, *numbers: int) -> list[int]:
    """How often each of these jobs is said to have been submitted."""
    found = []
    for number in numbers:
        _, answer = box.api("GET", f"/jobs/{number}/history")
        found.append([line["event"] for line in answer["events"]].count("submitted"))
    return found


@pytest.mark.parametrize("name", BEFORE)
def test_kill_before_close_leaves_no_submission(box: Box, name: str) -> None:
    box.up(*FLAGS, env={"GFLOW_FAULT": name})
    ask_in_vain(box, "/jobs", submission(box))
    box.up(*FLAGS)
    assert box.jobs() == {}
    status, answer = box.api("POST", "/jobs", submission(box))
    assert (status, answer["total"]) == (201, MANY)
    assert len(box.jobs()) == MANY, "the retry made them, and nothing is left of the first try"


@pytest.mark.parametrize("name", AFTER)
def test_kill_after_close_keeps_the_whole_submission(box: Box, name: str) -> None:
    box.up(*FLAGS, env={"GFLOW_FAULT": name})
    ask_in_vain(box, "/jobs", submission(box))
    box.up(*FLAGS)
    assert sorted(box.jobs()) == list(range(1, MANY + 1))
    status, answer = box.api("POST", "/jobs", submission(box))
    assert (status, answer["jobs"][0]["id"], answer["total"]) == (201, 1, MANY)
    assert stories(box, 1, 150, MANY) == [1, 1, 1]


@pytest.mark.parametrize("name", ["bulk.intended", "bulk.done-part", "bulk.done-part:3", "bulk.done"])
def test_bulk_cancel_continues_after_kill(box: Box, name: str) -> None:
    box.up(*FLAGS, env={"GFLOW_FAULT": name})
    box.api("POST", "/jobs", submission(box))
    ask_in_vain(box, "/jobs/cancel", {"all": True})
    box.up(*FLAGS)
    wait_until(lambda: not box.api("GET", "/jobs")[1]["jobs"], what="all jobs to be cancelled")
    states = {job["state"] for job in box.api("GET", "/jobs?all=1&limit=0")[1]["jobs"]}
    assert states == {"Cancelled"}
