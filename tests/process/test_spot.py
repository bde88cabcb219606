"""A spot notice: jobs stop with the time that is left, and go on when the machine is back."""

from __future__ import annotations

import re
import sys

import pytest

from tests.harness import Box, wait_until
from tests.metadata import Server

# Longer than its own grace time to save itself: a notice gives it the time that is left.
SAVES = """
import os, signal, sys, time
def stop(*_):
    time.sleep(2)
    print("saved", os.path.exists(os.environ["GFLOW_STOP_FILE"]), flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("attempt", os.environ["GFLOW_ATTEMPT"], flush=True)
if os.environ["GFLOW_ATTEMPT"] == "1":
    time.sleep(600)
"""


@pytest.mark.both_shims
def test_a_notice_stops_requeues_and_drains(box: Box, metadata: Server) -> None:
    box.env |= {"GFLOW_SPOT__CLOUD": f"aws={metadata.base}", "GFLOW_SPOT__EVERY_SECS": "1"}
    box.up("--cpus", "4", "--simulate-gpus", "1x80G")
    (box.work / "train.py").write_text(SAVES)
    job = box.submit("--requeue", "--grace", "1", sys.executable, "train.py")
    other = box.submit("--grace", "1", "sleep 600")
    wait_until(lambda: "attempt 1" in box.text_of(job) and box.job(other)["state"] == "Running")
    metadata.take(120)
    why = "aws will reclaim this machine (terminate)"
    wait_until(lambda: box.job(job)["state"] == "Queued", 20)
    assert box.output_of(job).endswith("attempt 1\nsaved True\n")
    assert re.search(
        rf"^gflow: job {job} was preempted after [0-9:]+: {re.escape(why)}$", box.text_of(job), re.M
    )
    assert box.job(job)["reason"] == f"Drained: {why}"
    assert box.finished(other)["reason"] == f"Preempted: {why}"
    waiting = box.submit("true")
    assert box.job(waiting)["reason"] == f"Drained: {why}"
    assert why in box.run("ginfo").stdout
    metadata.taken = None
    assert box.finished(job, 20)["state"] == "Finished"
    assert box.job(job)["attempt"] == 2 and box.finished(waiting)["state"] == "Finished"


def test_new_daemon_does_not_remember_the_spot_notice(box: Box, metadata: Server) -> None:
    """A machine that is there again is not taken away: what waits goes on by itself."""
    box.env |= {"GFLOW_SPOT__CLOUD": f"gcp={metadata.base}", "GFLOW_SPOT__EVERY_SECS": "1"}
    metadata.take(30)
    box.up("--cpus", "1", "--simulate-gpus", "1x80G")
    wait_until(lambda: "gcp will reclaim this machine" in box.run("ginfo").stdout)
    job = box.submit("true")
    assert box.job(job)["state"] == "Queued"
    box.kill9()
    metadata.taken = None
    box.up()
    assert box.finished(job)["state"] == "Finished"


@pytest.mark.parametrize(("said", "refusal"), [("awz", "unknown cloud"), ("aws=nowhere", "is no address")])
def test_bad_spot_cloud_is_refused(box: Box, said: str, refusal: str) -> None:
    done = box.run("gflowd", "up", env={**box.env, "GFLOW_SPOT__CLOUD": said})
    assert done.returncode == 2 and refusal in done.stderr and "spot.cloud" in done.stderr
