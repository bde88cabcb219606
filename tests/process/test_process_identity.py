"""Processes of a job by pid: signals reach the job's processes only, and a job is over when
none of them lives, even if a tracer holds its zombies.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from gflow.targets.local.cgroups import find_layers, remove_layers
from tests.harness import Box, wait_until

ROOT = Path(__file__).parents[2]
BOTH_SHIMS = pytest.mark.both_shims
# The first process leaves at TERM; its child, in a session of its own, does not.
LEAVES_A_CHILD = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open("child", "w").write(str(os.getpid()))
    time.sleep(600)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
open("first", "w").write(str(os.getpid()))
while not os.path.exists("go"): time.sleep(0.02)
"""
HAS_A_THREAD = """
import os, threading, time
thread = threading.Thread(target=time.sleep, args=[600])
thread.start()
open("child", "w").write(str(thread.native_id))
open("first", "w").write(str(os.getpid()))
time.sleep(600)
"""


class Stat(NamedTuple):
    state: str
    parent: int


def stat_of(pid: int) -> Stat | None:
    """What /proc says of this number; None: no process has it."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:2]
    except OSError:
        return None
    return Stat(state, int(parent))


def pid_in(box: Box, name: str) -> int:
    path = box.work / name
    return int(wait_until(lambda: path.exists() and path.read_text(), what=name))


@contextmanager
def traced(pid: int, *options: str) -> Iterator[int]:
    """A process outside the job that traces this one (options: see tracing.py); its pid."""
    words = [sys.executable, str(Path(__file__).with_name("tracing.py")), *options, str(pid)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stdout is not None
            if tracer.stdout.readline() != "ready\n":
                _, said = tracer.communicate()
                pytest.skip(f"nothing can be traced here: {said}")
            yield tracer.pid
        finally:
            tracer.kill()


@BOTH_SHIMS
@pytest.mark.parametrize("groups", ["with control groups", "without"])
def test_ended_first_process_keeps_pid_while_child_lives(box: Box, groups: str) -> None:
    """Its pid is the number of the job's process group, to which signals go."""
    box.up("--cpus", "2", env={"GFLOW_NO_CGROUPS": "1"} if groups == "without" else {})
    job = box.submit("--grace", "300", "python3", "-c", LEAVES_A_CHILD)
    first, child = pid_in(box, "first"), pid_in(box, "child")
    box.ok("gcancel", str(job))
    wait_until(lambda: (stat := stat_of(first)) is None or stat.state == "Z", what="its end")
    wait_until(lambda: box.job(job)["stopping"])
    stat = stat_of(first)
    assert stat is not None and stat.parent == int((box.data / f"run/{job}.1").read_text().split()[3])
    assert stat_of(child) is not None
    box.ok("gcancel", "--now", str(job))
    final = box.finished(job)
    assert (final["state"], final["exit_code"]) == ("Cancelled", 7)
    assert stat_of(first) is None and stat_of(child) is None


@BOTH_SHIMS
def test_process_with_reused_pid_gets_no_signal_of_job(box: Box, shim: str) -> None:
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a pid namespace of its own needs root and unshare")
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child",
         sys.executable, "-m", "tests.process.pid_reuse", str(box.root), shim],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("spared\n"), done.stdout + done.stderr


@BOTH_SHIMS
@pytest.mark.parametrize("groups", ["with control groups", "without"])
@pytest.mark.parametrize("which", ["child", "first process", "thread"])
def test_job_ends_though_an_outsider_traces_its_dead(box: Box, which: str, groups: str) -> None:
    env = {"GFLOW_NO_CGROUPS": "1"} if groups == "without" else {}
    box.up("--simulate-gpus", "1x80G", "--cpus", "2", env=env)
    line = HAS_A_THREAD if which == "thread" else LEAVES_A_CHILD
    job = box.submit("--gpus", "1", "--grace", "0", "python3", "-c", line)
    first, child = pid_in(box, "first"), pid_in(box, "child")
    with traced(first if which == "first process" else child) as tracer:
        box.ok("gcancel", "--now", str(job))
        final = box.finished(job)
        assert final["state"] == "Cancelled"
        after = box.submit("--gpus", "1", "echo", "next")
        assert box.finished(after)["state"] == "Finished"
        assert f"its tracer {tracer} (" in box.text_of(job)
    assert final["exit_code"] == 7 or final["signal"] in (signal.SIGKILL, signal.SIGTERM)  # TERM comes first


@BOTH_SHIMS
def test_job_traced_by_outsider_still_ends(box: Box) -> None:
    box.up("--cpus", "2")
    job = box.submit("python3", "-c", LEAVES_A_CHILD)
    first, child = pid_in(box, "first"), pid_in(box, "child")
    with traced(first):
        (box.work / "go").touch()
        assert box.finished(job)["state"] == "Finished"
        assert stat_of(child) is None
    assert box.finished(box.submit("true"))["state"] == "Finished"


@BOTH_SHIMS
@pytest.mark.parametrize("groups", ["with control groups", "without"])
@pytest.mark.parametrize("which", ["child", "first process"])
def test_tracer_that_holds_a_killed_process_is_killed_too(box: Box, which: str, groups: str) -> None:
    """KILL does not reach a process that its tracer stopped on its way out."""
    env = {"GFLOW_NO_CGROUPS": "1"} if groups == "without" else {}
    box.up("--simulate-gpus", "1x80G", "--cpus", "2", env=env)
    job = box.submit("--gpus", "1", "--grace", "0", "python3", "-c", LEAVES_A_CHILD)
    first, child = pid_in(box, "first"), pid_in(box, "child")
    with traced(first if which == "first process" else child, "--hold") as tracer:
        box.ok("gcancel", "--now", str(job))
        assert box.finished(job)["state"] == "Cancelled"
        assert stat_of(first) is None and stat_of(child) is None
        wait_until(lambda: (stat := stat_of(tracer)) is None or stat.state == "Z", what="its end")
    assert f"its tracer {tracer} (" in box.text_of(job)


@BOTH_SHIMS
@pytest.mark.parametrize("tracer", ["a thread", "a tracer that is traced"])
def test_hidden_tracer_of_killed_process_is_killed(box: Box, tracer: str) -> None:
    box.up("--cpus", "2")
    job = box.submit("--grace", "0", "echo $$ > first; exec sleep 600")
    first = pid_in(box, "first")
    with ExitStack() as stack:
        last = stack.enter_context(traced(first, "--hold", *(["--thread"] if tracer == "a thread" else [])))
        if tracer != "a thread":
            last = stack.enter_context(traced(last, "--hold"))
        box.ok("gcancel", "--now", str(job))
        assert box.finished(job)["state"] == "Cancelled"
        assert f"its tracer {last} (" in box.text_of(job)


@BOTH_SHIMS
def test_tracers_that_come_again_do_not_hold_a_killed_job(box: Box) -> None:
    """One tracer for each process of the job; killing one reveals the next."""
    box.up("--simulate-gpus", "1x80G", "--cpus", "2")
    job = box.submit("--gpus", "1", "--grace", "0", "python3", "-c", LEAVES_A_CHILD)
    pids = [pid_in(box, "first"), pid_in(box, "child")]
    tracing = f"{sys.executable} {Path(__file__).with_name('tracing.py')} --hold"
    with ExitStack() as stack:
        for pid in pids:
            loop = f"while [ -e /proc/{pid} ]; do {tracing} {pid} 2> /dev/null; done"
            again = stack.enter_context(subprocess.Popen(["sh", "-c", loop], stdout=subprocess.PIPE))
            assert again.stdout is not None and again.stdout.readline() == b"ready\n"
        box.ok("gcancel", "--now", str(job))
        assert box.finished(job)["state"] == "Cancelled"
    assert [stat_of(pid) for pid in pids] == [None, None]


@BOTH_SHIMS
def test_foreign_tracer_of_killed_process_is_only_named(box: Box) -> None:
    if os.getuid() != 0:
        pytest.skip("only root becomes another user")
    box.env["GFLOW_JOBS__UNKILLABLE_SECS"] = "2"
    box.up("--simulate-gpus", "1x80G", "--cpus", "2")
    job = box.submit("--gpus", "1", "--grace", "0", "echo $$ > first; exec sleep 600")
    first = pid_in(box, "first")
    with traced(first, "--hold", "--uids", "65534,65534,65534") as tracer:
        box.ok("gcancel", "--now", str(job))
        reason = wait_until(
            lambda: (box.job(job)["reason"] or "").startswith("Unkillable: ") and box.job(job)["reason"]
        )
        assert f"pid {first} (sleep) in t state" in reason
        assert f"traced by {tracer} (" in reason and "user 65534)" in reason
        assert f"its tracer {tracer} (" in box.text_of(job)
        stat = stat_of(tracer)
        assert stat is not None and stat.state != "Z"
    assert box.finished(job)["state"] == "Cancelled"


FORKS = """
import os, sys, time
made = 0
while made < 100:
    try:
        if os.fork() == 0: time.sleep(600)
    except BlockingIOError: break
    made += 1
print(made)
"""


@pytest.mark.parametrize(
    ("shim", "limits"),
    [("plain", []), ("python", []), ("python", ["--memory", "500M"])],
    ids=["native", "python", "with a memory limit"],
    indirect=["shim"],
)
def test_job_has_no_more_processes_than_it_may(box: Box, limits: list[str]) -> None:
    layers = find_layers(f"test-{os.getpid()}")
    remove_layers(layers)
    if not layers.pids:
        pytest.skip("no control groups count processes here")
    box.up("--cpus", "2", env={"GFLOW_JOBS__MAX_PROCESSES": "30"})
    for _ in range(2):  # the second is in a new control group
        job = box.submit(*limits, "python3", "-c", FORKS)
        assert box.finished(job)["state"] == "Finished"
        assert 20 < int(box.text_of(job)) <= 30
    box.down()
    wait_until(lambda: not [folder for folder in box.control_groups() if folder.name.startswith("shim-")])


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process in a state in which KILL does not reach it, as one that waits for a disk that is gone."""
    if not os.access("/sys/fs/cgroup/freezer", os.W_OK):
        pytest.skip("there is no freezer of version 1 here")
    folder = Path(f"/sys/fs/cgroup/freezer/gflow-test-{os.getpid()}")
    folder.mkdir()
    try:
        (folder / "cgroup.procs").write_text(str(pid))
        (folder / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (folder / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), what="its end")
        folder.rmdir()


@BOTH_SHIMS
def test_job_that_cannot_be_killed_keeps_its_gpu_and_says_why(box: Box) -> None:
    box.env["GFLOW_JOBS__UNKILLABLE_SECS"] = "1"
    box.up("--simulate-gpus", "1x80G", "--cpus", "2")
    job = box.submit("--gpus", "1", "echo $$ > first; exec sleep 600")
    after = box.submit("--gpus", "1", "true")
    pid = pid_in(box, "first")
    with frozen(pid):
        box.ok("gcancel", "--now", str(job))
        reason = wait_until(
            lambda: (box.job(job)["reason"] or "").startswith("Unkillable: ") and box.job(job)["reason"]
        )
        assert f"pid {pid} (sleep) in D state" in reason and box.job(job)["state"] == "Running"
        assert "Unkillable" in box.ok("gqueue") and "Unkillable" in box.ok("ginfo")
        assert f"job {job} cannot be killed: pid {pid}" in box.log()
        assert box.job(after)["state"] == "Queued"
        box.kill9()
        box.up()
        wait_until(lambda: box.job(job)["reason"] == reason, what="what its record says")
    assert box.finished(job)["state"] == "Cancelled"
    assert box.finished(after)["state"] == "Finished"
    assert "Unkillable" not in box.ok("ginfo")
