"""Clocks, samples and processes: what every trial measures with."""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
# CPUCLOCK_SCHED of the kernel: clock_getcpuclockid(3) makes the number of the clock of a process of it.
CPU_CLOCK_OF_PROCESS = 2


class NotOffered(Exception):
    """The system cannot do this; the text says why."""


def describe_machine(load: list[float]) -> dict[str, Any]:
    """The machine of a run, with the load averages seen during it."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in load],
    }


# ---------------------------------------------------------------- samples


@dataclass
class Sample:
    """Values of one figure. Rounds of the same figure are joined into one sample."""

    values: list[float]
    unit: str = "ms"
    more_is_better: bool = False

    def joined(self, other: Sample) -> Sample:
        return Sample(self.values + other.values, self.unit, self.more_is_better)

    def summary(self) -> dict[str, Any]:
        """Plain data: how many, least, median, 99th percentile, most."""
        data: dict[str, Any] = {"n": len(self.values), "unit": self.unit}
        if self.more_is_better:
            data["more_is_better"] = True
        if self.values:
            ordered = sorted(self.values)
            data["min"] = round(ordered[0], 3)
            data["med"] = round(statistics.median(ordered), 3)
            data["p99"] = round(ordered[round(0.99 * (len(ordered) - 1))], 3)
            data["max"] = round(ordered[-1], 3)
        return data


def milliseconds(seconds: list[float]) -> Sample:
    return Sample([value * 1e3 for value in seconds])


def rate(count: int, seconds: float, unit: str = "jobs/s") -> Sample:
    return Sample([count / seconds], unit, more_is_better=True)


def or_not_offered(measure: Callable[[], Sample]) -> Sample | str:
    """The figure, or why there is none."""
    try:
        return measure()
    except NotOffered as reason:
        return f"n/a: {reason}"


@dataclass
class Settings:
    """How much to measure: full or quick, and single numbers by `key=value`."""

    quick: bool = False
    chosen: dict[str, str] = field(default_factory=dict)

    def number(self, name: str, full: int, quick: int, at_most: int | None = None) -> int:
        """A count of this run. `at_most` holds slow systems down, unless the count was chosen."""
        if name in self.chosen:
            return int(self.chosen[name])
        usual = quick if self.quick else full
        return usual if at_most is None else min(usual, at_most)

    def numbers(self, name: str, full: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        if name in self.chosen:
            return tuple(int(part) for part in self.chosen[name].split(","))
        return quick if self.quick else full


# ---------------------------------------------------------------- time


def timed(command: list[str], env: dict[str, str], cwd: Path) -> float:
    """Seconds from starting `command` to its end. It must succeed.

    Output goes to /dev/null, not into a pipe: a client may leave a child behind that keeps
    the pipe open.
    """
    begin = time.perf_counter()
    code = subprocess.call(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
    )
    seconds = time.perf_counter() - begin
    if code:
        raise RuntimeError(f"{' '.join(command)}: exit code {code}")
    return seconds


def wait_until(condition: Callable[[], Any], timeout_s: float, step_s: float = 0.02) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(step_s)
    return False


def stamps(path: Path) -> list[int]:
    """Times in nanoseconds that jobs wrote into a file with `date +%s%N`; whole lines only."""
    try:
        return [int(line) for line in path.read_text().split("\n")[:-1]]
    except FileNotFoundError:
        return []


# ---------------------------------------------------------------- processes


def cpu_seconds(pids: list[int]) -> float:
    """CPU time that these processes have used so far, with all their threads; 0 for those that have ended."""
    return sum(map(_cpu_seconds_of, pids))


def _cpu_seconds_of(pid: int) -> float:
    """From the CPU clock of the process, in nanoseconds: the ticks of /proc/PID/stat are of 10 ms."""
    try:
        return time.clock_gettime(~pid << 3 | CPU_CLOCK_OF_PROCESS)
    except OSError:
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pids: list[int]) -> float:
    """Memory of these processes; pages that they share count once (proportional set size)."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def with_descendants(pid: int) -> list[int]:
    """A process and everything below it, the process first."""
    children: dict[int, list[int]] = {}
    for each in _all_pids():
        try:
            parent = int(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(each)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def command_line(pid: int) -> bytes:
    """The words of a process; empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def marked(variable: str) -> list[int]:
    """Processes that have exactly this NAME=value in their environment."""
    wanted = variable.encode()
    found = []
    for pid in _all_pids():
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def kill_marked(variable: str) -> list[str]:
    """Kill what carries this mark; the names of what was found."""
    names = []
    while pids := marked(variable):
        for pid in pids:
            try:
                names.append(Path(f"/proc/{pid}/comm").read_text().strip())
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.02)
    return names


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


# ---------------------------------------------------------------- HTTP


def exchange(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    accept: str = "application/json",
) -> Any:
    """One request on an open connection; the JSON of the answer (None if it is not JSON)."""
    headers = {"Accept": accept}
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    content = response.read()
    if response.status >= 400:
        raise RuntimeError(f"{method} {path}: {response.status} {content[:200]!r}")
    return json.loads(content) if content[:1] in (b"{", b"[") else None
