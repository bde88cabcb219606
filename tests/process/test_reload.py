"""gflowd reload: the same process, the same socket, no interruption for clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from typing import Any

import pytest

from tests.harness import BIN, Box, wait_until


def reloaded(box: Box) -> None:
    assert box.daemon is not None
    asked = time.monotonic()
    os.kill(box.daemon.pid, signal.SIGUSR1)

    def is_new() -> bool:
        return patient(box, "GET", "/status")[1]["uptime_secs"] < time.monotonic() - asked

    wait_until(is_new, 60, "the next daemon")


def patient(box: Box, *request: Any) -> tuple[int, Any]:
    """A request of a client that tries once more, at once, if its connection breaks."""
    try:
        return box.api(*request)
    except ConnectionError:
        return box.api(*request)


def test_reload_keeps_the_process_with_new_settings(box: Box) -> None:
    box.ok("gflowd", "up", "--cpus", "3")
    pid = json.loads(box.ok("gflowd", "status", "--json"))["pid"]
    job = box.submit("bash", "-c", "ulimit -n; sleep 600")
    wait_until(lambda: box.text_of(job))
    limit = box.text_of(job)
    config = box.home / ".config/gflow/gflow.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[jobs]\ngrace_secs = 7\n")
    assert f"PID: {pid}" in box.ok("gflowd", "reload")
    status = json.loads(box.ok("gflowd", "status", "--json"))
    assert (status["pid"], status["cpu_total"]) == (pid, 3)
    assert status["settings"]["jobs.grace_secs"]["value"] == 7
    assert box.job(job)["state"] == "Running"
    second = box.submit("bash", "-c", "ulimit -n")
    box.finished(second)
    assert box.text_of(second) == limit, "jobs have the limits that they had before"
    config.write_text("[jobs]\ngrace_secs = 'long'\n")
    refused = box.run("gflowd", "reload")
    assert refused.returncode == 2 and "grace_secs" in refused.stderr
    assert json.loads(box.ok("gflowd", "status", "--json"))["pid"] == pid, "the old one goes on"
    config.unlink()
    box.ok("gflowd", "down", "--kill-jobs")
    wait_until(lambda: not os.path.exists(box.socket))


def test_a_job_of_a_reloaded_daemon_has_the_usual_signals(box: Box) -> None:
    box.up("--cpus", "2")
    before = box.submit("grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
    box.finished(before)
    reloaded(box)
    after = box.submit("grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
    box.finished(after)
    assert box.text_of(after) == box.text_of(before)
    stubborn = box.submit("bash", "-c", "trap '' TERM; echo up; while :; do sleep 1; done")
    wait_until(lambda: box.text_of(stubborn))
    reloaded(box)
    box.ok("gcancel", "--now", str(stubborn))
    assert box.finished(stubborn)["state"] == "Cancelled", "a later daemon's kill is heard"


def test_client_that_connects_during_reload_waits(box: Box) -> None:
    box.up("--cpus", "2")
    assert box.daemon is not None
    answers: list[int] = []

    def ask() -> None:
        for _ in range(40):
            answers.append(patient(box, "GET", "/health")[0])

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(2):
        os.kill(box.daemon.pid, signal.SIGUSR1)  # asked for twice
        reloaded(box)
    asking.join(60)
    assert answers == [200] * 40
    waiting = subprocess.Popen(
        [BIN / "gbatch", "--wait", "sleep 1; exit 7"], env=box.env, cwd=box.work, stdout=-3
    )
    wait_until(lambda: box.jobs())
    reloaded(box)
    assert waiting.wait(30) == 7


@pytest.mark.slow
def test_twenty_reloads_under_a_thousand_jobs(box: Box) -> None:
    box.up("--cpus", "8")
    ran = box.work / "ran"
    line = f"sleep 0.1; echo $GFLOW_JOB_ID.$GFLOW_ATTEMPT >> {ran}"
    jobs = [box.job_request(["bash", "-c", line]) for _ in range(1000)]
    status, answer = box.api("POST", "/jobs", {"token": "a-thousand", "jobs": jobs})
    assert status == 201
    ids = {job["id"] for job in answer["jobs"]}
    over = threading.Event()
    errors: list[Exception] = []
    extra: list[int] = []

    def client(name: int) -> None:
        count = 0
        while not over.is_set():
            try:
                assert patient(box, "GET", "/health")[0] == 200
                count += 1
                mine = {"token": f"client-{name}-{count}", "jobs": [box.job_request(["bash", "-c", line])]}
                status, answer = patient(box, "POST", "/jobs", mine)
                assert status == 201, answer
                extra.append(answer["jobs"][0]["id"])
            except Exception as error:
                errors.append(error)
            time.sleep(0.5)

    clients = [threading.Thread(target=client, args=(name,)) for name in range(3)]
    for one in clients:
        one.start()
    for _ in range(20):
        reloaded(box)
    over.set()
    for one in clients:
        one.join(60)
    assert errors == []
    assert len(set(extra)) == len(extra)
    wait_until(lambda: box.api("GET", "/status")[1]["waiting"] == 0, 300, "the end of the queue")
    wait_until(lambda: box.api("GET", "/status")[1]["running"] == 0, 60, "the last jobs")
    final = box.jobs()
    assert {job["state"] for job in final.values()} == {"Finished"}
    assert set(final) == ids | set(extra), "none lost, none made twice"
    lines = ran.read_text().split()
    assert sorted(lines) == sorted(f"{job}.1" for job in final), "each ran once"
