"""Progress of jobs in gqueue, gjob, the API and the events."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.harness import Box, wait_until
from tests.process.test_multi_user import submitted
from tests.system import system

SAYS = """
import sys, time
from gflow.ml.train.progress import Reporter
reporter = Reporter(every_s=0.05)
for step in range(int(sys.argv[1]), int(sys.argv[2])):
    reporter.note(step, steps=200, epoch=step // 50, epochs=4, samples=32 * step, loss=2.0 - step / 100)
    time.sleep(0.06)
print("said", flush=True)
while sys.argv[3:] and not __import__("os").path.exists(sys.argv[3]): time.sleep(0.05)
"""


def says(box: Box, first: int, last: int, *more: str, options: tuple[str, ...] = ()) -> int:
    (box.work / "says.py").write_text(SAYS)
    return box.submit(*options, sys.executable, "says.py", str(first), str(last), *more)


def progress(box: Box, job: int) -> dict:
    return box.job(job)["progress"] or {}


@pytest.mark.both_shims
def test_job_progress_is_shown(daemon: Box) -> None:
    job = says(daemon, 98, 101, str(daemon.work / "end"))
    wait_until(lambda: progress(daemon, job).get("step") == 100)
    found = progress(daemon, job)
    assert (found["percent"], found["epoch"], found["epochs"], found["loss"]) == (50, 2, 4, 1.0)
    assert found["samples_per_s"] > 0 and found["left_s"] > 0
    _, cells = daemon.ok("gqueue", "-f", "JOBID,PROGRESS,ETA,LOSS,RATE").splitlines()
    assert cells.split()[:2] == [str(job), "50%"] and cells.split()[3] == "1"
    assert "Progress: 50 %, step 100 of 200, epoch 3 of 4, loss 1, " in daemon.ok("gjob", "show", str(job))
    (daemon.work / "end").touch()
    assert daemon.finished(job)["progress"]["step"] == 100, "what it said last stays"
    assert "50 %, step 100 of 200" in daemon.ok("gjob", "history", str(job))


def test_events_come_at_every_tenth(daemon: Box) -> None:
    job = says(daemon, 15, 45)
    daemon.finished(job)
    history = json.loads(daemon.ok("gjob", "history", "--json", str(job)))
    told = [line["detail"] for line in history["events"] if line["event"] == "progress"]
    assert [text.split(" %")[0] for text in told] == ["10", "20"]
    stream = daemon.api("GET", "/events?follow=0&after=0&events=job_progress")[1]
    assert stream.count(b"event: job_progress") == 2


def test_restarted_daemon_receives_progress(daemon: Box) -> None:
    job = says(daemon, 1, 199)
    wait_until(lambda: progress(daemon, job).get("step", 0) > 3)
    daemon.kill9()
    daemon.up()
    wait_until(lambda: progress(daemon, job).get("step", 0) > 10)


def test_invalid_and_excess_reports_are_ignored(daemon: Box) -> None:
    job = says(daemon, 98, 101, str(daemon.work / "end"))
    wait_until(lambda: progress(daemon, job).get("step") == 100)
    folder = os.open(daemon.data, os.O_PATH)
    path = f"/proc/self/fd/{folder}/progress.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        for text in (
            b"",
            b"\xff" * 100,
            b"{}",
            b"x" * 5000,
            json.dumps({"job": str(job), "attempt": 1, "step": -5}).encode(),
            json.dumps({"job": str(job), "attempt": 1, "step": 10**18}).encode(),
            json.dumps({"job": str(job), "attempt": 1, "step": "7"}).encode(),
            json.dumps({"job": str(job), "attempt": 9, "step": 7}).encode(),
            json.dumps({"job": "77", "attempt": 1, "step": 7}).encode(),
            json.dumps({"job": "../etc", "attempt": 1, "step": 7}).encode(),
        ):
            sock.sendto(text, path)
        for _ in range(2000):
            try:
                sock.sendto(json.dumps({"job": "77", "attempt": 1, "step": 7}).encode(), path)
            except BlockingIOError:
                break
    assert daemon.ok("gqueue", "-f", "JOBID,PROGRESS").split() == ["JOBID", "PROGRESS", str(job), "50%"]
    (daemon.work / "end").touch()
    assert daemon.finished(job)["state"] == "Finished"


BURST = """
import json, os, socket
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
os.chdir(os.path.dirname(os.environ["GFLOW_PROGRESS"]))  # a long path does not fit into an address
for step in range(1, 41):
    said = {"job": os.environ["GFLOW_JOB_ID"], "attempt": 1, "step": step}
    sock.sendto(json.dumps(said).encode(), os.path.basename(os.environ["GFLOW_PROGRESS"]))
os._exit(0)
"""


def test_last_report_before_the_end_is_heard(daemon: Box) -> None:
    """Reading pauses after 32 of them, and the job is over before it goes on."""
    (daemon.work / "burst.py").write_text(BURST)
    job = daemon.submit(sys.executable, "burst.py")
    ended = daemon.finished(job)
    assert (ended["state"], ended["progress"]["step"]) == ("Finished", 40), daemon.text_of(job)


QUICK = """
from gflow.train import report
for step in range(1, 41):
    report(step, steps=%d, loss=1 / step)
"""


@pytest.mark.parametrize(("steps", "shown"), [(40, "100%"), (80, "50%")])
def test_a_finished_job_keeps_its_last_report(daemon: Box, steps: int, shown: str) -> None:
    (daemon.work / "quick.py").write_text(QUICK % steps)
    job = daemon.submit(sys.executable, "quick.py")
    daemon.finished(job)
    _, cells = daemon.ok("gqueue", "-a", "-f", "JOBID,PROGRESS,LOSS").splitlines()
    assert cells.split() == [str(job), shown, "0.025"]


MEASURES = """
import sys
from gflow.train import report
report(1, loss=float(sys.argv[1]), accuracy=float(sys.argv[2]))
"""


def test_any_metric_is_listed_sorted_and_shown(daemon: Box) -> None:
    (daemon.work / "measures.py").write_text(MEASURES)
    jobs = [daemon.submit(sys.executable, "measures.py", *values) for values in (("3", "0.5"), ("1", "0.25"))]
    jobs.append(daemon.submit("true"))
    for job in jobs:
        daemon.finished(job)
    first, second, silent = map(str, jobs)

    def listed(order: str) -> list[list[str]]:
        text = daemon.ok("gqueue", "-a", "-r", order, "-f", "JOBID,LOSS,accuracy")
        return [line.split() for line in text.splitlines()]

    assert listed("loss") == [
        ["JOBID", "LOSS", "accuracy"], [second, "1", "0.25"], [first, "3", "0.5"], [silent, "-", "-"],
    ]  # fmt: skip
    assert [cells[0] for cells in listed("-accuracy")] == ["JOBID", first, second, silent]
    assert progress(daemon, jobs[0])["metrics"] == {"accuracy": 0.5}
    assert "Metrics: accuracy 0.5\n" in daemon.ok("gjob", "show", first)


def test_a_shell_script_reports(daemon: Box) -> None:
    lines = ("gflow report step=40 steps=100 loss=0.5", "gflow report accuracy=0.75", "gflow report step=50")
    job = daemon.submit("bash", "-c", " && ".join(lines))
    assert daemon.finished(job)["state"] == "Finished", daemon.text_of(job)
    found = progress(daemon, job)
    assert (found["percent"], found["loss"], found["metrics"]) == (50, 0.5, {"accuracy": 0.75})
    assert found["left_s"] > 0


FLOODS = """
import glob, json, os, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
said = json.dumps({"job": sys.argv[1], "attempt": 1, "step": 1, "steps": 10}).encode()
print("floods", flush=True)
while True:
    for path in glob.glob(os.path.dirname(sys.argv[2]) + "/progress*.sock"):
        try:
            sock.sendto(said, path)
        except OSError:
            pass
"""
REPORTS = """
import json, socket, sys, time
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
lost = 0
for step in range(1, 21):
    try:
        sock.sendto(json.dumps({"job": sys.argv[1], "attempt": 1, "step": step}).encode(), sys.argv[2])
    except OSError:
        lost += 1
    time.sleep(0.02)
print(lost)
"""


def test_flood_of_one_user_takes_no_report_of_others() -> None:
    """The kernel queues ten datagrams for a socket: a flood leaves no room for anything else."""
    with system() as machine:
        machine.up()
        words = {}
        for box, program in ((machine.ann, FLOODS), (machine.bob, REPORTS)):
            job = submitted(machine, box, "bash", "-c", "echo $GFLOW_PROGRESS; exec sleep 60")
            path = wait_until(lambda box=box, job=job: machine.log_of(box, job).strip())
            words[box] = [*box.prefix, sys.executable, "-c", program, str(job), path]
        flood = subprocess.Popen(words[machine.ann], stdout=subprocess.PIPE, cwd="/")
        try:
            assert flood.stdout is not None and flood.stdout.readline() == b"floods\n"
            said = subprocess.run(words[machine.bob], capture_output=True, text=True, cwd="/")
        finally:
            flood.kill()
            flood.wait()
        assert said.stdout == "0\n", said
        wait_until(lambda: (machine.box.job(job)["progress"] or {}).get("step") == 20)
        found = {path.name: path.stat() for path in (machine.root / "run/gflow").glob("progress*")}
        uids = {machine.ann.person.pw_uid, machine.bob.person.pw_uid}
        assert {name: (one.st_uid, one.st_mode & 0o777) for name, one in found.items()} == {
            f"progress-{uid}.sock": (uid, 0o600) for uid in uids
        }
