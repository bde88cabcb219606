"""The questions, one function each: `trial(system, settings)` yields figures by name.

A trial is a generator so that what it has measured is kept if the rest of it fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import (
    NotOffered,
    Sample,
    Settings,
    cpu_seconds,
    memory_mb,
    milliseconds,
    or_not_offered,
    rate,
    stamps,
    wait_until,
)
from benchmarks.systems import System

# How often the start of one more job is measured in a large queue.
LATE = 10
Figures = Iterator[tuple[str, Sample | str]]
Trial = Callable[[System, Settings], Figures]
TRIALS: dict[str, Trial] = {}


def trial(function: Trial) -> Trial:
    TRIALS[function.__name__] = function
    return function


def command_times(system: System, command: list[str], count: int) -> Sample:
    return milliseconds([system.timed(command) for _ in range(count)])


# ---------------------------------------------------------------- the command line


@trial
def cli(system: System, settings: Settings) -> Figures:
    """How long do commands take, alone and with jobs waiting?"""
    count = settings.number("cli_n", 20, quick=10, at_most=system.at_most.get("cli"))
    system.start(slots=1)
    yield "help", or_not_offered(lambda: command_times(system, system.cmd_help(), count))
    yield "queue", or_not_offered(lambda: command_times(system, system.cmd_queue(), count))
    yield "info", or_not_offered(lambda: command_times(system, system.cmd_info(), count))
    yield "submit true", or_not_offered(lambda: command_times(system, system.cmd_submit("true"), count))
    yield "show", or_not_offered(lambda: command_times(system, system.cmd_show(), count))
    for waiting in settings.numbers("cli_waiting", (900, 10_000), quick=(900,)):
        system.start(slots=1, hold=True)
        try:
            system.bulk(waiting, "true", "blocked")
        except NotOffered as reason:
            yield f"queue at {waiting}", f"n/a: {reason}"
            continue
        yield f"queue at {waiting}", or_not_offered(lambda: command_times(system, system.cmd_queue(), count))
        yield (
            f"submit at {waiting}",
            or_not_offered(lambda: command_times(system, system.cmd_submit("true"), count)),
        )


@trial
def submit(system: System, settings: Settings) -> Figures:
    """How many jobs can be submitted in a second, by a shell loop and in bulk?"""
    count = settings.number("submit_n", 500, quick=50, at_most=system.at_most.get("submit"))
    system.start(slots=1, hold=True)
    command = or_command(system.cmd_submit_blocked) or system.cmd_submit("sleep 600")
    begin = time.perf_counter()
    for _ in range(count):
        system.timed(command)
    yield "loop", rate(count, time.perf_counter() - begin)
    for size in settings.numbers("bulk", (900, 10_000), quick=(900,)):

        def bulk(size: int = size) -> Sample:
            system.start(slots=1, hold=True)
            return rate(size, system.bulk(size, "true", "blocked"))

        yield f"bulk of {size}", or_not_offered(bulk)


def or_command(hook: Callable[[], list[str]]) -> list[str] | None:
    try:
        return hook()
    except NotOffered:
        return None


# ---------------------------------------------------------------- how soon a job runs


@trial
def start(system: System, settings: Settings) -> Figures:
    """From starting the submit command to the job's first action, on an idle system."""
    yield from latencies(system, settings, "start", lambda: system.submit)


@trial
def start_open(system: System, settings: Settings) -> Figures:
    """The same over a connection that a program keeps open: what the daemon alone adds."""
    yield from latencies(system, settings, "start_open", system.open_client)


def latencies(
    system: System, settings: Settings, name: str, client: Callable[[], Callable[[str], object]]
) -> Figures:
    count = settings.number("start_n", 20, quick=10, at_most=system.at_most.get(name))
    system.start(slots=4)
    submit_one = client()
    seconds, lost = [], 0
    for i in range(count):
        file = system.work / f"started-{i}"
        begin = time.time_ns()
        submit_one(f"date +%s%N > {file}")
        if wait_until(lambda: stamps(file), 30, 0.005):
            seconds.append((stamps(file)[0] - begin) / 1e9)
        else:
            lost += 1
        time.sleep(0.137 + 0.05 * (i % 5))  # out of step with every poll
    yield "latency", milliseconds(seconds)
    if lost:
        yield "never started", Sample([lost], "jobs")


@trial
def gap(system: System, settings: Settings) -> Figures:
    """How long does a slot stay empty between two jobs? Both ends are stamped by the jobs."""
    count = settings.number("gap_n", 50, quick=20, at_most=system.at_most.get("gap"))
    system.start(slots=1)
    file = system.work / "stamps"
    system.bulk(count, f"date +%s%N >> {file}; sleep 0.05; date +%s%N >> {file}", "serial")
    wait_until(lambda: len(stamps(file)) >= 2 * count, system.gap_timeout_s, 0.1)
    seen = stamps(file)
    # begin, end, begin, end, …: an empty slot lies between each end and the begin after it.
    yield "idle", milliseconds([(after - end) / 1e9 for end, after in zip(seen[1::2], seen[2::2])])
    if len(seen) < 2 * count:
        yield "never ended", Sample([count - len(seen) // 2], "jobs")


@trial
def throughput(system: System, settings: Settings) -> Figures:
    """How many jobs that do nothing can be run in a second?"""
    count = settings.number("throughput_n", 500, quick=300, at_most=system.at_most.get("throughput"))
    system.start()
    time.sleep(0.5)
    before = cpu_seconds(system.pids())
    seconds, done = system.run_all(count, settings.chosen.get("throughput_sh", "true"))
    yield "rate", rate(done, seconds)
    yield "server CPU", Sample([(cpu_seconds(system.pids()) - before) * 1e3 / max(1, done)], "ms/job")
    if done < count:
        yield "not done", Sample([count - done], "jobs")


# ---------------------------------------------------------------- large queues, crashes, limits


@trial
def scale(system: System, settings: Settings) -> Figures:
    """What do many waiting jobs cost: memory, disk, idle CPU, and the start of one more job?"""
    for size in settings.numbers("sizes", (10_000, 100_000), quick=(10_000,)):
        try:
            yield from at_size(system, settings, size)
        except NotOffered as reason:
            yield f"{size}: submit", f"n/a: {reason}"


def at_size(system: System, settings: Settings, size: int) -> Figures:
    system.start(slots=1, hold=True)
    yield "0: memory", Sample([memory_mb(system.pids())], "MB")
    yield f"{size}: submit", Sample([system.bulk(size, "true", "blocked")], "s")
    yield f"{size}: memory", Sample([memory_mb(system.pids())], "MB")
    yield f"{size}: queue", or_not_offered(lambda: command_times(system, system.cmd_queue(), 5))
    yield f"{size}: queue of 20", or_not_offered(lambda: command_times(system, system.cmd_queue_of(20), 5))
    yield f"{size}: memory after queue", Sample([memory_mb(system.pids())], "MB")
    time.sleep(1)
    before, begin = cpu_seconds(system.pids()), time.monotonic()
    writes = count_writes(system, settings.number("idle_s", 40, quick=10))
    spent = cpu_seconds(system.pids()) - before
    yield f"{size}: idle CPU", Sample([spent / (time.monotonic() - begin) * 100], "%")
    yield f"{size}: idle writes", Sample([writes], "times")
    yield f"{size}: on disk", Sample([sum(size_of(path) for path in system.state_files()) / 1e6], "MB")
    yield from one_more(system, size, system.submit)


@trial
def gpus(system: System, settings: Settings) -> Figures:
    """What does the number of GPUs cost: memory, a listing of them, and the start of a job on one?"""
    for count in settings.numbers("gpu_counts", (1, 10, 100, 1000, 10_000), quick=(1, 100)):
        system.start_with_gpus(count)
        yield f"{count}: memory", Sample([memory_mb(system.pids())], "MB")
        yield f"{count}: info", or_not_offered(lambda: command_times(system, system.cmd_info(), 5))
        yield from one_more(system, count, system.submit_on_gpu)


def one_more(system: System, size: int, submit: Callable[[str], None]) -> Figures:
    """The start of one job, several times, and the CPU time of the daemon, without its helpers, for it."""
    seconds, cpu, daemon = [], [], system.daemon_pids()
    for i in range(LATE):
        file = system.work / f"late-{i}"
        before, begin_ns = cpu_seconds(daemon), time.time_ns()
        submit(f"date +%s%N > {file}")
        if wait_until(lambda: stamps(file), 30, 0.005):
            seconds.append((stamps(file)[0] - begin_ns) / 1e9)
        time.sleep(0.5)
        cpu.append((cpu_seconds(daemon) - before) * 1e3)
    yield f"{size}: start of one more", milliseconds(seconds)
    yield f"{size}: CPU of one more", Sample(cpu, "ms")


def count_writes(system: System, seconds: float) -> int:
    """How often the state on disk changes while nothing happens."""

    def seen() -> list[tuple[int, int]]:
        return [(info.st_ino, info.st_mtime_ns) for info in map(Path.stat, system.state_files())]

    count, last, end = 0, seen(), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        try:
            now = seen()
        except FileNotFoundError:  # a file is just being replaced
            continue
        count += now != last
        last = now
    return count


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@trial
def durable(system: System, settings: Settings) -> Figures:
    """Acknowledged submissions, then kill -9 of the daemon and a restart: how many jobs are lost?

    blocked: jobs that wait; run: jobs that start at once.
    """
    count = settings.number("durable_n", 200, quick=50)
    for kind in ("blocked", "run"):
        system.start(slots=1 if kind == "blocked" else None, hold=kind == "blocked")
        command = system.cmd_submit_blocked() if kind == "blocked" else system.cmd_submit("true")
        for _ in range(count):
            system.timed(command)
        system.kill9()
        time.sleep(0.2)
        system.restart()
        yield f"lost of {count}, {kind}", Sample([count - system.known()], "jobs")


@trial
def timelimit(system: System, settings: Settings) -> Figures:
    """A job with a limit of 2 s: how long does it really run until it is told to stop?"""
    count, limit_s = settings.number("limit_n", 10, quick=4), 2
    system.start(slots=count)
    begun = [system.work / f"begun-{i}" for i in range(count)]
    ended = [system.work / f"ended-{i}" for i in range(count)]
    for begin, end in zip(begun, ended):
        script = f"date +%s%N > {begin}; trap 'date +%s%N > {end}; exit 1' TERM INT HUP; sleep 60 & wait"
        system.timed(system.cmd_submit_limited(script, limit_s))
        time.sleep(0.37)
    wait_until(lambda: all(map(stamps, ended)), 60, 0.1)
    ran = [(stamps(end)[0] - stamps(begin)[0]) / 1e9 for begin, end in zip(begun, ended) if stamps(end)]
    yield f"run time at {limit_s} s", Sample(ran, "s")
    if len(ran) < count:
        yield "never stopped", Sample([count - len(ran)], "jobs")
