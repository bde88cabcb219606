"""Laws of docs/architecture.md that are not the subject of a file of their own."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

from tests.harness import Box, wait_until

SPAN_S = 3.0
# A look every half a second would be six.
MOST_WAKE_UPS = 4


def wake_ups(pid: int) -> int:
    """How often all threads of a process have gone to sleep, and so have woken up."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        text = status.read_text()
        count += int(text.partition("voluntary_ctxt_switches:")[2].split()[0])
    return count


def is_quiet(pid: int) -> bool:
    before = wake_ups(pid)
    time.sleep(SPAN_S)  # the span that is looked at, not a wait for anything
    return wake_ups(pid) - before <= MOST_WAKE_UPS


def test_daemon_does_not_poll_idle_or_with_running_job(daemon: Box) -> None:
    """Law 9. What is left of a start or an end takes a moment; what polls never stops."""
    assert daemon.daemon is not None
    pid = daemon.daemon.pid
    daemon.finished(daemon.submit("true"))
    wait_until(lambda: is_quiet(pid), what="an idle daemon to sleep")
    job = daemon.submit("--gpus", "1", "--time", "1:00:00", "sleep", "1000")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    wait_until(lambda: is_quiet(pid), what="a daemon with a job to sleep")


def test_a_person_is_their_uid_whatever_the_environment_says(daemon: Box) -> None:
    """Law 7."""
    liar = {"USER": "mallory", "LOGNAME": "mallory", "USERNAME": "mallory"}
    job = daemon.submit("echo", "I am $USER", env=liar)
    me = pwd.getpwuid(os.getuid()).pw_name
    assert daemon.finished(job)["user"] == me
    assert daemon.ok("gqueue", "-a", "-u", "mallory", "-f", "JOBID", env=liar) == "JOBID\n"
    assert daemon.ok("gqueue", "-a", "-u", me, "-f", "JOBID", env=liar) == f"JOBID\n{job}\n"
    assert daemon.ok("gstats", "-o", "csv", env=liar).splitlines()[1].startswith(f"all,{me},1,")
