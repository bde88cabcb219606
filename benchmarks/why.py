"""How right `gjob why` is: a trace is replayed, and jobs that have to wait ask when they are submitted.

    python -m benchmarks.why philly.csv                        nine pools, and a box of 8 GPUs, with and without limits
    python -m benchmarks.why philly.csv 103959 2869ce --limits
    python -m benchmarks.why philly.csv 0e4a51 --gpus 8

For each pool: which part of the jobs started within the interval (eight in ten are promised), and how wide it was in
the middle. An interval is made of what was known when the job was submitted, as in the daemon: errors of earlier forecasts
count from the moment their jobs start, and as a lower bound before it. With `--limits` every job has a time limit
(its run time times 1.1 to 5, rounded up to a usual value), and the width is compared with what limits alone
say: from now until the start that the scheduler would give the job if everything took as long as it may and nothing more
came. `plain`: the same, if those before the job in order simply started one after the other, as they fit.
"""

from __future__ import annotations

import argparse
import heapq
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from gflow.core.expecting import Question, Start, ahead_of
from gflow.core.foretold import Case
from gflow.core.ids import job_key
from gflow.core.model import Job
from gflow.core.state import State
from gflow.simulate import shaping
from gflow.simulate.measure import quantile
from gflow.simulate.policies import POLICIES
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry, read_trace

POOLS = ("103959", "0e4a51", "ee9e8c", "2869ce", "7f04ca", "b436b2", "6c71a0", "11cb48", "6214e9")
# So many jobs ask on each pool, or all of them.
ASKING = 700


class Told(NamedTuple):
    """What a job was told, and the widths that limits alone give."""

    start: Start
    by_limits: float
    plain: float


class Asking(Replay):
    """A replay in which some of the jobs ask when they will start."""

    def __init__(self, entries: list[Entry], pool: int, every: int) -> None:
        super().__init__(entries, pool, POLICIES["ours"][1])
        self.told: dict[int, Told | None] = {}
        self._every = every
        self._count = 0

    def _take(self, effects, now):  # type: ignore[no-untyped-def]
        super()._take(effects, now)
        latest = self.state.next_number - 1
        if latest <= self._count:
            return
        self._count = latest
        job = self.state.jobs.get(job_key(latest))
        if latest % self._every == 0 and job is not None and job in self.state.ready:
            self.told[latest - 1] = self._asked(job, now)

    def _asked(self, job: Job, now: float) -> Told | None:
        question = Question(self.state, job, now)
        start, case = question.start(self.state), question.case(self.state)
        if start is None or case is None:
            return None
        self.state.foretold.tell(job.key, case)
        return Told(start, _limits_alone(case), plain(self.state, job, now) if case.is_bounded else inf)


def _limits_alone(case: Case) -> float:
    return case.worst_s if case.is_bounded else inf


def plain(state: State, job: Job, wall: float) -> float:
    """How long it waits if all take as long as they may and those before it start as they fit; no promises."""
    free, mine, now = len(state.machine.idle), job.spec.gpus, wall
    ends = [
        (max(wall, (one.started_at or 0.0) + one.spec.time_limit_s), one.spec.gpus)
        for one in state.running.values()
    ]
    heapq.heapify(ends)
    line = [[group.key.shape.gpus, count, group.key.limit_s] for group, count in ahead_of(state, job)]
    while True:
        for one in line:
            while one[1] and one[0] <= free:
                free -= one[0]
                one[1] -= 1
                heapq.heappush(ends, (now + one[2], one[0]))
        if mine <= free:
            return now - wall
        line = [one for one in line if one[1]]
        now, freed = heapq.heappop(ends)
        free += freed


def score(name: str, entries: list[Entry], pool: int) -> None:
    replay = Asking(entries, pool, max(1, len(entries) // ASKING))
    replay.run()
    hits, widths = [], []
    for place, told in replay.told.items():
        start = replay.starts[place]
        hits.append(told is not None and told.start.earliest <= start <= told.start.latest)
        widths.append(inf if told is None else told.start.latest - told.start.earliest)
    width = quantile(widths, 0.5) / 3600
    cells = [f"{name:<24} {pool:4} GPUs {len(hits):5} asked", f"{sum(hits) / max(1, len(hits)):4.0%} within"]
    cells.append(f"median width {width:7.1f} h")
    known = [(place, told) for place, told in replay.told.items() if told is not None]
    for title, bounds in (
        ("limits alone", [(place, told.by_limits) for place, told in known]),
        ("plain", [(place, told.plain) for place, told in known]),
    ):
        middle = quantile([bound for _, bound in bounds], 0.5) / 3600
        if middle < inf and bounds:
            kept = sum(replay.starts[place] - entries[place].submit <= bound for place, bound in bounds)
            cells.append(
                f"{title} {middle:.1f} h ({kept / len(bounds):.0%} within): {width / middle:.2f} of it"
            )
    print("  ".join(cells), flush=True)


def workload(trace: Path, pool: str, gpus: int, limits: bool) -> tuple[list[Entry], int]:
    entries = read_trace(trace, {}, {"cluster": pool})
    count = gpus or shaping.pool_for(entries, 0.9)
    entries = sorted(shaping.fitted(entries, count, 0.9 if gpus else 0.0, Random(0)))
    return (shaping.limited(entries, Random(0)) if limits else entries), count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("pools", nargs="*")
    parser.add_argument(
        "--gpus", type=int, default=0, help="a box of so many, and as much of the trace as fills it"
    )
    parser.add_argument("--limits", action="store_true")
    asked = parser.parse_args()
    if asked.pools:
        todo = [(pool, asked.gpus, asked.limits) for pool in asked.pools]
    else:
        boxes = [*((pool, 0) for pool in POOLS), ("0e4a51", 8)]
        todo = [(pool, gpus, limits) for limits in (True, False) for pool, gpus in boxes]
    for pool, gpus, limits in todo:
        name = pool + (f" on {gpus}" if gpus else "") + (" with limits" if limits else "")
        score(name, *workload(asked.trace, pool, gpus, limits))


if __name__ == "__main__":
    main()
