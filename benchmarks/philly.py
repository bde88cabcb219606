"""The table behind the scheduler's defaults: replay a trace in Philly's format, pool by pool.

    python -m benchmarks.philly philly.csv                     all rows
    python -m benchmarks.philly philly.csv default --seeds 5   one row, the mean of five jitters of the arrivals
    python -m benchmarks.philly philly.csv default --pools 103959,0e4a51
    python -m benchmarks.philly hpc2n.swf whole                a trace with its users and the limits they gave

A figure is the geometric mean over the pools of (ours + 60 s) / (greedy + 60 s); below 1 ours waits less. Every pool has
as many GPUs as give the offered load, and never fewer than its widest job needs.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from gflow.simulate import trace_transform
from gflow.simulate.metrics import measure
from gflow.simulate.replay import POLICIES
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry, read_trace

POOLS = ("103959", "0e4a51", "ee9e8c", "2869ce", "7f04ca", "b436b2", "6c71a0", "11cb48", "6214e9")
JITTER_S = 600
MINUTE = 60.0
# Of `add_users`: how many users, the sessions at a time, their mean length, and how many jobs belong to an open one.
USERS, SESSIONS, SESSION_S, PART_OF_SESSION = 16, 6, 6 * 3600.0, 0.85
_GREEDY: dict[tuple[Any, ...], dict[str, Any]] = {}


class Row(NamedTuple):
    """One line of the table."""

    policy: str
    load: float = 0.9
    box: int = 0
    limits: bool = False
    users: bool = False
    pools: tuple[str, ...] = POOLS


ROWS = {
    "default": Row("ours"),
    "throughput": Row("throughput"),
    "limits": Row("ours", limits=True),
    "load-0.7": Row("ours", load=0.7),
    "8-gpu-box": Row("ours", box=8),
    "users": Row("ours", users=True),
    "users-limits": Row("ours", limits=True, users=True),
    "users-8-gpu-box": Row("ours", box=8, users=True),
    "e13805": Row("ours", pools=("e13805",)),
    "predictor-alone": Row("unprotected"),
    # A whole trace as one pool, with its users and limits if it has them.
    "whole": Row("ours", pools=("",)),
    "whole-easy": Row("easy", pools=("",)),
    "fifo": Row("fifo"),
    "easy-perfect": Row("easy-perfect"),
    "easy-limits": Row("easy", limits=True),
}
# What is compared: name, where it is, what is added on both sides.
FIGURES = (
    ("mean", ("mean_wait_s",), MINUTE),
    ("slowdown", ("mean_slowdown",), 0.0),
    ("wide p99", ("wide", "p99_wait_s"), MINUTE),
    ("wide max", ("wide", "max_wait_s"), MINUTE),
)


def workloads(trace: Path, row: Row, seeds: int) -> Iterator[tuple[str, list[Entry], int]]:
    for pool in row.pools:
        whole = read_trace(trace, {}, {"cluster": pool} if pool else {})
        for seed in range(seeds):
            random = Random(seed)
            gpus = row.box or trace_transform.pool_for(whole, row.load)
            entries = trace_transform.fit_to_pool(whole, gpus, row.load if row.box else 0.0, random)
            entries = trace_transform.jitter(entries, JITTER_S, random)
            if row.limits:
                entries = trace_transform.add_limits(entries, random)
            yield pool, add_users(entries, Random(seed + 100)) if row.users else entries, gpus


class Session:
    """A user who submits jobs for as many GPUs under one name, or as a sweep, for some hours."""

    def __init__(self, user: str, until: float, gpus: int, name: str, *, is_sweep: bool) -> None:
        self.user, self.until, self.gpus, self._name, self._is_sweep = user, until, gpus, name, is_sweep
        self._runs = 0

    def next_name(self) -> str:
        self._runs += 1
        return f"{self._name}-{self._runs}" if self._is_sweep else self._name


def add_users(entries: list[Entry], random: Random) -> list[Entry]:
    """Give each job a user (the first of 16 has most, by Zipf's law) and a name: jobs come in sessions."""
    weights = [1 / (rank + 1) for rank in range(USERS)]
    found, sessions = [], list[Session]()
    for entry in entries:
        sessions = [one for one in sessions if one.until > entry.submit]
        alike = [one for one in sessions if one.gpus == entry.gpus]
        if sessions and random.random() < PART_OF_SESSION and alike:
            session = random.choice(alike)
        else:
            user, kind = random.choices(range(USERS), weights)[0], random.randrange(3)
            name = (f"w{random.randrange(6)}", f"s{random.randrange(10**6)}", "")[kind]
            until = entry.submit + random.expovariate(1 / SESSION_S)
            session = Session(f"u{user}", until, entry.gpus, name, is_sweep=kind == 1)
            sessions = [*sessions[-(SESSIONS - 1) :], session]
        found.append(entry._replace(user=session.user, name=session.next_name()))
    return found


def replayed(entries: list[Entry], gpus: int, policy: str) -> dict[str, Any]:
    begin = time.process_time()
    found = measure(Replay(entries, gpus, POLICIES[policy][1], exact=policy == "easy-perfect").run(), gpus, 8)
    found["jobs_per_s"] = len(entries) / max(1e-9, time.process_time() - begin)
    gc.collect()
    return found


def figure(found: list[dict[str, Any]], path: tuple[str, ...]) -> float:
    """The mean over the seeds."""
    total = 0.0
    for one in found:
        value: Any = one
        for name in path:
            value = value[name]
        total += value
    return total / len(found)


def greedy_of(entries: list[Entry], gpus: int, name: tuple[Any, ...]) -> dict[str, Any]:
    """The greedy baseline of several rows, replayed once."""
    if name not in _GREEDY:
        _GREEDY[name] = replayed(entries, gpus, "greedy")
    return _GREEDY[name]


def run_row(trace: Path, name: str, row: Row, seeds: int) -> None:
    ours: dict[str, list[dict[str, Any]]] = {}
    greedy: dict[str, list[dict[str, Any]]] = {}
    for pool, entries, gpus in workloads(trace, row, seeds):
        same = (pool, len(greedy.get(pool, ())), row.load, row.box, row.limits, row.users)
        greedy.setdefault(pool, []).append(greedy_of(entries, gpus, same))
        ours.setdefault(pool, []).append(replayed(entries, gpus, row.policy))
    cells = [f"{name:<16}"]
    for title, path, more in FIGURES:
        pools = [pool for pool in ours if path[0] != "wide" or ours[pool][0]["wide"]["jobs"]]
        ratios = {
            pool: (figure(ours[pool], path) + more) / (figure(greedy[pool], path) + more) for pool in pools
        }
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            cells.append(f"{title} {mean:.2f}")
        if title == "mean":
            loses = ", ".join(f"{pool} {ratio:.2f}" for pool, ratio in ratios.items() if ratio > 1.05)
    used = [figure(ours[pool], ("utilisation",)) - figure(greedy[pool], ("utilisation",)) for pool in ours]
    cells.append(f"use {100 * sum(used) / len(used):+.1f} points")
    longest = max(figure(ours[pool], ("wide", "max_wait_s")) for pool in ours) / 3600
    was = max(figure(greedy[pool], ("wide", "max_wait_s")) for pool in ours) / 3600
    cells.append(f"longest wide {longest:.0f} h (greedy {was:.0f} h)")
    speed = [one["jobs_per_s"] for found in ours.values() for one in found]
    cells.append(f"{min(speed):.0f}-{max(speed):.0f} jobs/s")
    print("  ".join(cells), flush=True)
    if loses:
        print(f"{'':<16}  mean wait longer than greedy's on {loses}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("rows", nargs="*", help=", ".join(ROWS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pools", type=lambda text: tuple(text.split(",")))
    asked = parser.parse_args()
    for name in asked.rows or [name for name, row in ROWS.items() if row.pools != ("",)]:
        if name not in ROWS:
            parser.error(f"there is no row {name}")
        row = ROWS[name]
        run_row(asked.trace, name, row._replace(pools=asked.pools) if asked.pools else row, asked.seeds)


if __name__ == "__main__":
    main()
