"""benchmarks.measure: CPU time of other processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from benchmarks import measure

# Works in a second thread that then ends, and says how much CPU time the process has used.
PROGRAM = """
import sys, threading, time
def work():
    end = time.thread_time() + 0.013
    while time.thread_time() < end:
        pass
one = threading.Thread(target=work)
one.start(); one.join()
print(time.process_time(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def worker() -> Iterator[tuple[int, float]]:
    """A process that waits, and the CPU time that it reports for itself."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as one:
        assert one.stdout is not None
        yield one.pid, float(one.stdout.readline())
        one.communicate()


def test_cpu_time_is_finer_than_a_tick_and_has_ended_threads(worker: tuple[int, float]) -> None:
    pid, reported = worker
    assert reported <= measure.cpu_seconds([pid]) < reported + 0.005
    assert measure.cpu_seconds([pid, pid]) >= 2 * reported


def test_cpu_time_falls_back_to_ticks(worker: tuple[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(clock: int) -> float:
        raise OSError("no such clock")

    monkeypatch.setattr(measure.time, "clock_gettime", refused)
    pid, reported = worker
    assert abs(measure.cpu_seconds([pid]) - reported) < 0.05


def test_a_process_that_ended_has_no_cpu_time() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert measure.cpu_seconds([ended.pid]) == 0
