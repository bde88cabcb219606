"""Break down the time between the end of a job and the start of the next one in its slot.

    benchmarks/run breakdown [JOBS]      needs root and `perf`

Kernel trace points report when processes exit, start, read, sync and send; the daemon is not instrumented.
"""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import stamps, wait_until
from benchmarks.ours import Ours

EVENTS = (
    "sched:sched_process_exit",
    "sched:sched_process_exec",
    "syscalls:sys_enter_recvfrom",
    "syscalls:sys_enter_fdatasync",
    "syscalls:sys_exit_fdatasync",
    "syscalls:sys_enter_sendto",
)
LINE = re.compile(
    r"\s*(?P<comm>.+?)\s+\d+/(?P<tid>\d+)\s+(?P<at>[\d.]+):\s+\w+:(?P<what>\w+):\s*(?P<detail>.*)"
)
# From one moment to the next: what happens then, whose event ends it (the daemon's, or the job's program).
STEPS = (
    ("its end reaches the daemon", "sys_enter_recvfrom", "daemon"),
    ("decision, writing", "sys_enter_fdatasync", "daemon"),
    ("sync to disk", "sys_exit_fdatasync", "daemon"),
    ("order of the next job", "sys_enter_sendto", "daemon"),
    ("shim, up to the job's exec", "sched_process_exec", "sh"),
    ("the job's own start (sh, date)", "sched_process_exec", "date"),
)


class Event(NamedTuple):
    at_ms: float
    tid: int
    what: str
    detail: str


def main(count: int) -> None:
    system = Ours()
    system.start(slots=1)
    try:
        text = recorded(system, count)
        daemon = system.pid
    finally:
        system.stop()
    gaps = list(gaps_of(list(events_of(text)), daemon))
    if not gaps:
        sys.exit("benchmarks/breakdown: perf saw no gap between two jobs")
    for (name, _, _), values in zip(STEPS, zip(*gaps, strict=True), strict=True):
        print(f"{name:32}{min(values):8.3f}{statistics.median(values):8.3f}")
    whole = [sum(gap) for gap in gaps]
    print(
        f"{'in all':32}{min(whole):8.3f}{statistics.median(whole):8.3f}  ms, least and median of {len(gaps)}"
    )


def recorded(system: Ours, count: int) -> str:
    """Kernel events while one slot runs this many jobs."""
    stamped = system.work / "stamps"
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder, "perf.data"))
        perf = subprocess.Popen(["perf", "record", "-q", "-a", "-o", data, "-e", ",".join(EVENTS)])
        time.sleep(1)  # until it records: it does not tell
        system.bulk(count, f"date +%s%N >> {stamped}; sleep 0.05; date +%s%N >> {stamped}", "serial")
        wait_until(lambda: len(stamps(stamped)) >= 2 * count, 60, 0.1)
        perf.send_signal(signal.SIGINT)
        perf.wait()
        fields = ["-F", "comm,pid,tid,time,event,trace"]
        done = subprocess.run(
            ["perf", "script", "-i", data, *fields], capture_output=True, text=True, check=True
        )
    return done.stdout


def events_of(text: str) -> Iterator[Event]:
    for line in text.splitlines():
        found = LINE.match(line)
        if found:
            yield Event(float(found["at"]) * 1e3, int(found["tid"]), found["what"], found["detail"])


def gaps_of(events: list[Event], daemon: int) -> Iterator[list[float]]:
    """The duration of each step of each gap."""
    for number, event in enumerate(events):
        if event.what == "sched_process_exit" and "comm=sh " in event.detail:
            gap = steps_of(event.at_ms, events[number:], daemon)
            if gap is not None:
                yield gap


def steps_of(began: float, events: list[Event], daemon: int) -> list[float] | None:
    """The steps of one gap; None if no job followed."""
    lengths: list[float] = []
    after = iter(events)
    for _, what, whose in STEPS:
        for event in after:
            by_it = event.tid == daemon if whose == "daemon" else f"/{whose} " in event.detail
            if event.what == what and by_it:
                break
        else:
            return None
        lengths.append(event.at_ms - began)
        began = event.at_ms
    return lengths


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
