"""The last line of a log: how the job ended, unless it exited by itself."""

from __future__ import annotations

import os
import pwd

import pytest

from tests.harness import Box, wait_until

pytestmark = pytest.mark.both_shims
ME = pwd.getpwuid(os.geteuid()).pw_name
HOG = "python3 -c 'x = bytearray(900 << 20); import time; time.sleep(60)'"


def cancelled(box: Box, job: int | str, log: str) -> None:
    """Cancel a job once it has written this."""
    wait_until(lambda: box.text_of(job) == log)
    box.ok("gcancel", str(job))
    box.finished(job)


def test_last_line_of_a_log_says_how_the_job_ended(daemon: Box) -> None:
    late = daemon.submit("--time", "0:01", "printf 40%%; sleep 60")
    large = daemon.submit("--memory", "100M", HOG)
    killed = daemon.submit("kill -KILL $$")
    array = daemon.submit("--array", "3", "echo x; sleep 60")
    cancelled(daemon, f"{array}_3", "x\n")
    assert f"gflow: job {array}_3 was cancelled by {ME} after 00:00:" in daemon.text_of(f"{array}_3")
    daemon.finished(killed)
    assert daemon.text_of(killed) == f"gflow: job {killed} was killed by signal 9 (Killed)\n"
    reason = daemon.finished(large)["reason"].partition(": ")[2]
    assert daemon.text_of(large) == f"gflow: job {large} ran out of memory: {reason}\n"
    daemon.finished(late)
    assert daemon.text_of(late) == f"40%\ngflow: job {late} timed out after 00:00:01 (limit 00:00:01)\n"
    answer = daemon.api("GET", f"/jobs/{killed}/log")[1]
    assert answer["ended"] == "was killed by signal 9 (Killed) after 00:00:00"


def test_log_of_a_job_that_exits_by_itself_is_not_changed(daemon: Box) -> None:
    jobs = [daemon.submit(f"printf ok; exit {code}") for code in (0, 3)]
    for job, ended in zip(jobs, ("finished", "exited with code 3"), strict=True):
        daemon.finished(job)
        assert daemon.text_of(job) == "ok"
        assert daemon.api("GET", f"/jobs/{job}/log")[1]["ended"] == f"{ended} after 00:00:00"


def test_restarted_daemon_still_says_why_it_stops_a_job(daemon: Box) -> None:
    job = daemon.submit("echo x; sleep 60")
    wait_until(lambda: daemon.text_of(job) == "x\n")
    daemon.kill9()
    daemon.up()
    cancelled(daemon, job, "x\n")
    assert f"gflow: job {job} was cancelled by {ME} after 00:00:" in daemon.text_of(job)


def test_last_line_goes_only_to_a_log_that_is_still_a_file(daemon: Box) -> None:
    """A log that the job removed or replaced stays so, and a pipe without a reader blocks nothing."""
    replaced = {
        "removed": "rm $LOG", "pipe": "rm $LOG; mkfifo $LOG", "folder": "rm $LOG; mkdir $LOG"
    }  # fmt: skip
    for what, line in replaced.items():
        log = daemon.work / what
        job = daemon.submit("-o", str(log), f"LOG={log}; {line}; touch {log}.done; sleep 60")
        wait_until((daemon.work / f"{what}.done").exists)
        daemon.ok("gcancel", "--now", str(job))
        assert daemon.finished(job)["reason"] == "CancelledByUser"
    assert not (daemon.work / "removed").exists()
    assert (daemon.work / "pipe").is_fifo() and (daemon.work / "folder").is_dir()
