"""Early stopping with real jobs that report, and a daemon that restarts in between."""

from __future__ import annotations

import json
import re
import sys

from tests.harness import Box
from tests.process.test_gqueue import Terminal

# Reports its loss at one step, then ends or waits to be stopped. A loss of 2.5 waits for a file first.
TRAINS = """
import os, sys, time
from gflow.train import report
while sys.argv[1] == "2.5" and not os.path.exists("go"): time.sleep(0.05)
report(int(sys.argv[2]), steps=1000, loss=float(sys.argv[1]), final=True)
while "--ends" not in sys.argv: time.sleep(0.05)
"""


def trains(box: Box, *words: str, options: tuple[str, ...] = ()) -> int:
    (box.work / "trains.py").write_text(TRAINS)
    return box.submit(*options, sys.executable, "trains.py", *words)


def test_job_that_meets_a_rule_is_stopped_and_says_why(daemon: Box) -> None:
    rules = ("--stop-when", "loss is nan", "--stop-when", "loss>2 at step 500", "--max-retries", "2")
    job = trains(daemon, "3.1", "500", options=("--hold", *rules))
    child = daemon.submit("--depends-on", str(job), "true")
    daemon.ok("gjob", "release", str(job))
    ended = daemon.finished(job)
    why = "StoppedEarly: loss 3.1 > 2 at step 500"
    assert (ended["state"], ended["reason"], ended["attempt"]) == ("Cancelled", why, 1)
    assert daemon.finished(child)["reason"] == f"DependencyFailed:{job}"
    shown = daemon.ok("gjob", "show", str(job))
    assert why in shown and "Stop when: loss is nan, loss > 2 at step 500" in shown
    assert why in daemon.ok("gjob", "why", str(job)) and why in daemon.ok("gqueue", "-a")
    assert "early stop" in daemon.ok("gjob", "history", str(job))
    stats = json.loads(daemon.ok("gstats", "--json"))
    assert (stats["failed_jobs"], stats["cancelled_jobs"]) == (0, 2)
    diverged = trains(daemon, "nan", "7", options=("--stop-when", "loss is nan"))
    assert daemon.finished(diverged)["reason"] == "StoppedEarly: loss is nan or inf at step 7"


def test_values_of_siblings_survive_a_restart(daemon: Box) -> None:
    (daemon.work / "trains.py").write_text(TRAINS)
    rule = ("--stop-when", "loss above median at step 10", "--cpus", "0", "--max-concurrent", "1")
    script = (sys.executable, "trains.py", "{loss}", "10")
    daemon.ok("gbatch", *rule, "--param", "loss=1,2,3,2.5,1.5", *script, "--ends")
    daemon.finished(3)
    daemon.kill9()
    daemon.up()
    (daemon.work / "go").touch()
    why = "StoppedEarly: loss 2.5 above the median 2 of 3 jobs at step 10"
    assert daemon.finished(4)["reason"] == why
    assert daemon.finished(5)["state"] == "Finished"
    history = daemon.ok("gjob", "history", "5").splitlines()
    ends = [line.removesuffix("gflow").strip() for line in history if "group ended" in line]
    assert len(ends) == 1 and "group g1: 4 finished, 1 stopped early in " in ends[0], ends
    assert ends[0].endswith("best loss 1 (job 1)")
    assert "Jobs: 5 (4 finished, 1 stopped early)" in re.sub(" +", " ", daemon.ok("gjob", "show", "g1"))
    daemon.ok("gjob", "wait", "g1")
    assert "4 finished, 1 stopped early (gjob show g1)\r\n" in Terminal(daemon, "gjob", "wait", "g1").all()


def test_bad_rule_is_refused_in_one_sentence(daemon: Box) -> None:
    done = daemon.run("gbatch", "--stop-when", "loss too high", "true")
    sentence, hint = done.stderr.splitlines()
    assert (done.returncode, sentence) == (2, "gbatch: --stop-when: 'loss too high' is not a rule")
    assert "loss > 2 at step 500" in hint
