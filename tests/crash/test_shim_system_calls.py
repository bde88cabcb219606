"""The daemon for all users: kill -9 of launcher and scheduler before each system call of a start and an end.

The shim of a job, or the process that becomes the job, stops before the call. It goes on only when the next
daemon runs: that finds it at any point between the order and exec, and between the end of the job and its
record.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from gflow.targets.local.native_shim import NATIVE_SHIM
from gflow.targets.local.shim.process_tree import children
from tests.crash.syscall_stops import TracedProcess
from tests.crash.test_system_fault_points import Scene
from tests.harness import wait_until
from tests.process.test_system_mode import process_of
from tests.system import System, system

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.access(NATIVE_SHIM, os.X_OK), reason="the native shim is not built"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="knows the numbers of x86_64 only"),
]
POLL, EXECVE = 7, 59
# After these another part of its life begins.
LAST_CALLS = (None, POLL, EXECVE)
MOST_CALLS = 1000
# The process that becomes the job makes 70 calls and more, the more the longer /etc/passwd is.
EACH = {"start": 1, "child": 1 if os.environ.get("GFLOW_ALL_POINTS") else 10, "end": 1}


@pytest.fixture
def machine() -> Iterator[System]:
    with system() as made:
        yield made


def idle_shim(scene: Scene, busy: int) -> int:
    """The shim that gets the next order: the only one that runs no job. It has forked the job's process."""

    def found() -> int | None:
        shims = [pid for pid in children(parent_of(busy)) if pid != busy]
        return shims[0] if len(shims) == 1 and children(shims[0]) else None

    return wait_until(found, what="an idle shim")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def run_calls(traced: TracedProcess, count: int) -> bool:
    """Run to this system call after the one in which it waits; False: before, it ends, waits or executes."""
    calls = [traced.run_to_call()]
    while len(calls) < count and calls[-1] not in LAST_CALLS:
        calls.append(traced.run_to_call())
    return len(calls) == count and calls[-1] not in (None, POLL)


def kill_before_call(machine: System, part: str, count: int) -> bool:
    """One job, and a kill before this system call of a part of its life. False: there are fewer calls."""
    scene = Scene(machine, f"{part}-{count}")
    box = scene.box
    scene.up()
    running = scene.submit("running", 3)
    busy = process_of(machine, running)[0]
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        if part == "end":
            subject = scene.submit("subject", 5)
            wait_until(lambda: scene.noted("subject") == "b\n", what="the job to begin")
            traced = stack.enter_context(TracedProcess(process_of(machine, subject)[0]))
        else:
            shim = idle_shim(scene, busy)
            traced = stack.enter_context(TracedProcess(shim if part == "start" else children(shim)[0]))
        traced.run_to_call()  # in which it waits
        if part == "end":
            scene.let_go("subject")
        else:
            submission = pool.submit(scene.submit, "subject", 5)
        is_there = run_calls(traced, count)
        if part != "end":
            subject = submission.result(60)
        if is_there:
            scene.kill_daemon()
            scene.up()
    scene.let_go("subject")
    scene.let_go("running")
    for mark, job, code in (("subject", subject, 5), ("running", running, 3)):
        ended = box.finished(job)
        found = ended["exit_code"], ended["attempt"], scene.noted(mark)
        assert found == (code, 1, "b\ne\n"), f"{mark}, before call {count} of the {part}: {ended}"

    def is_forgotten() -> bool:
        """An end may be durable whose shim still lives when the next daemon begins: status looks at those."""
        return box.api("GET", "/status")[0] == 200 and not list((box.data / "run").iterdir())

    wait_until(is_forgotten, what="run records to be forgotten")
    scene.kill_daemon()
    return is_there


@pytest.mark.parametrize("part", ["start", "child", "end"])
def test_kill_before_each_system_call(machine: System, part: str) -> None:
    most = next(
        count for count in range(1, MOST_CALLS, EACH[part]) if not kill_before_call(machine, part, count)
    )
    assert most > 8, f"no call {most} was seen"
