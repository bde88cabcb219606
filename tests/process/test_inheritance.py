"""The process attributes of a job: none of the daemon's, the submitter's as far as allowed."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import BIN, Box
from tests.user_accounts import box_of, people, shared_folder

pytestmark = pytest.mark.both_shims
SHOW = """
import json, os, signal
text = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "oom": int(open("/proc/self/oom_score_adj").read()),
    "cpus": sorted(os.sched_getaffinity(0)),
    "blocked": int(text["SigBlk"], 16),
    "ignored": int(text["SigIgn"], 16),
    "files": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "session": os.getsid(0) == os.getppid() or os.getsid(0) == os.getpid(),
}))
"""
# Python itself ignores these two when it starts.
OF_PYTHON = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
# The C library keeps 32 and 33 for its threads and does not allow changes of them.
OF_LIBC = 1 << (32 - 1) | 1 << (33 - 1)
WAYS = pytest.mark.parametrize("way", [[], ["--memory", "500M"]], ids=["spawned", "forked"])


def odd() -> None:
    """A daemon that was started under odd circumstances."""
    os.setpriority(os.PRIO_PROCESS, 0, 7)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    Path("/proc/self/oom_score_adj").write_text("300")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP})
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


def shown(box: Box, *way: str) -> dict:
    script = box.work / "show.py"
    script.write_text(SHOW)
    job = box.submit(*way, sys.executable, str(script))
    assert box.finished(job)["state"] == "Finished", box.text_of(job)
    return json.loads(box.text_of(job))


@WAYS
@pytest.mark.skipif(os.getuid() != 0, reason="only root may take back what it gave away")
def test_a_job_does_not_inherit_the_daemons_circumstances(box: Box, way: list[str]) -> None:
    box.preexec = odd
    box.up("--cpus", "2")
    job = shown(box, *way)
    assert job["nice"] == 0
    assert job["oom"] == 200  # jobs.oom_score
    assert job["cpus"] == sorted(os.sched_getaffinity(0))
    assert job["blocked"] == 0
    assert job["ignored"] & ~(OF_PYTHON | OF_LIBC) == 0
    assert job["files"] == [0, 1, 2, 3], "its three, and the one that lists them"


@WAYS
def test_irreversible_daemon_settings_do_not_fail_the_job(way: list[str]) -> None:
    with people("ann") as (person,), shared_folder() as root:
        box = box_of(person, root)
        box.preexec = odd
        try:
            box.up("--cpus", "2")
            job = shown(box, *way)
        finally:
            box.clean_up()
    assert job["nice"] == 7, "a user cannot lower it again"
    assert job["blocked"] == 0


@WAYS
def test_limits_above_what_is_allowed_are_kept_at_that(way: list[str]) -> None:
    """The submitter may have more than the daemon: the job gets what the daemon may give."""
    with people("ann") as (person,), shared_folder() as root:
        box = box_of(person, root)
        box.preexec = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (400, 500))
        try:
            box.up("--cpus", "2")
            words = ["gbatch", "--parsable", *way, "ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Hc"]
            done = subprocess.run(
                [*box.prefix, BIN / words[0], *words[1:]],
                env=box.env,
                cwd=box.work,
                preexec_fn=more_files_less_core,
                capture_output=True,
                text=True,
            )
            job = int(done.stdout)
            assert box.finished(job)["state"] == "Finished", box.text_of(job)
            assert box.text_of(job).split() == ["500", "500", "0", "0"]
        finally:
            box.clean_up()


def more_files_less_core() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (800, 900))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
