"""gflow scale with a daemon: its measurements are jobs."""

from __future__ import annotations

import json

from tests.harness import Box

SCRIPT = """
import os, sys, time
from gflow.ml.train.progress import report
if os.environ["RANK"] != "0":
    time.sleep(60)  # until the first rank has ended
for step in range(1, 6):
    time.sleep(0.05)
    report(step, samples=step * 8 * int(os.environ["WORLD_SIZE"]))
sys.exit(75)  # stopped, as a run of gflow.train that is measured
"""


def test_measurements_that_were_stopped_are_not_failures(daemon: Box) -> None:
    (daemon.work / "train.py").write_text(SCRIPT)
    done = daemon.run("gflow", "scale", "--processes", "1,2", "--warmup", "1", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 2
    assert [(job["name"], job["state"]) for job in daemon.jobs().values()] == [
        ("scale-1-on-CPU", "Finished"),
        ("scale-2-on-CPU", "Finished"),
    ]
    assert daemon.run("gflow", "launch", "--processes", "1", "train.py").returncode == 75
