"""Makes the pid of a job's first process another process's while the job lives, as far as gflow lets it.

    unshare --pid --fork --mount --mount-proc python -m tests.process.pid_reuse FOLDER SHIM

In a pid namespace of its own the next pid can be chosen. A bystander with the number of the job's first
process, and so with the number of its process group, must not get a signal that is meant for the job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.harness import Box, wait_until

JOB = """
import os, time
if os.fork() == 0:
    os.setsid()
    open("child", "w").write(str(os.getpid()))
    time.sleep(600)
open("first", "w").write(str(os.getpid()))
while not os.path.exists("go"): time.sleep(0.02)
"""


def bystander(wanted: int) -> int:
    """A process that leads a group of its own, with this pid if it can be had."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(wanted - 1))
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        time.sleep(600)
        os._exit(0)
    return pid


def main() -> None:
    box = Box(Path(sys.argv[1]))
    box.env["GFLOW_SHIM"] = sys.argv[2]
    box.up("--simulate-gpus", "1x80G", "--cpus", "4")
    try:
        job = box.submit("--time", "60:00", "--signal", "USR1@1", "python3", "-c", JOB)
        first, child = (
            int(wait_until(lambda name=name: (path := box.work / name).exists() and path.read_text()))
            for name in ("first", "child")
        )
        tracer = Path(__file__).with_name("tracing.py")
        with subprocess.Popen([sys.executable, tracer, str(child)], stdout=subprocess.PIPE) as tracing:
            assert tracing.stdout is not None
            assert tracing.stdout.readline() == b"ready\n"
            (box.work / "go").touch()
            wait_until(lambda: Path(f"/proc/{child}/stat").read_text().split()[2] == "Z", what="its end")
            someone = bystander(first)
            box.run("gjob", "update", str(job), "--signal", "9@3599")
            box.finished(job)
            done, status = os.waitpid(someone, os.WNOHANG)
            print(f"wanted {first}, got {someone}")
            os.kill(someone, signal.SIGKILL)
            tracing.kill()
            assert not done, f"the bystander got signal {os.WTERMSIG(status)}"
    finally:
        box.clean_up()
    print("spared")


main()
