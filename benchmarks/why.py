"""Measure the accuracy of `gjob why`: a trace is replayed, and jobs that have to wait ask at submission.

    python -m benchmarks.why philly.csv                        nine pools, and a box of 8 GPUs, with and without limits
    python -m benchmarks.why philly.csv 103959 2869ce --limits
    python -m benchmarks.why philly.csv 0e4a51 --gpus 8
    python -m benchmarks.why philly.csv --limits --seed 3 --load 0.8
    python -m benchmarks.why hpc2n.swf                         one pool, with the limits that its users gave

For each pool, and for all together: which part of the jobs started within the interval (the target is eight in ten), and
how wide it was in the middle. An interval is made of what was known when the job was submitted, as in the daemon: earlier
forecasts count by their outcome from the moment their jobs start, and as a lower bound before it. `off`: by which factor
the expected start was wrong in the middle. With `--limits` every job has a time limit (its run time times 1.1 to 5,
rounded up to a usual value), and the width is compared with what limits alone say: from now until the start that the
scheduler would give the job if everything took as long as it may and nothing more came (the medians of both, and in
brackets the median over the jobs of the one against the other). `plain`: the same, if those before
the job in order simply started one after the other, as they fit. `--seed`: other limits, other jobs on the small box,
and every submission up to ten minutes earlier or later.
"""

from __future__ import annotations

import argparse
import heapq
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from gflow.core.forecast.start_time import Start, eta_query_of
from gflow.core.forecast.queue_snapshot import QueueSnapshot, ahead_of
from gflow.core.state.eta_calibration import EtaSample
from gflow.core.ids import JobKey, number_of
from gflow.core.model import Job
from gflow.core.state.state import State
from gflow.simulate import trace_transform
from gflow.simulate.metrics import quantile
from gflow.simulate.replay import POLICIES
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry, read_trace

POOLS = ("103959", "0e4a51", "ee9e8c", "2869ce", "7f04ca", "b436b2", "6c71a0", "11cb48", "6214e9")
# So many jobs ask on each pool, or all of them.
ASKING = 700
JITTER_S = 600.0


class Told(NamedTuple):
    """What a job was told, and the widths that limits alone give."""

    start: Start
    by_limits: float
    plain: float


class Survey:
    """ETAs of some of the jobs of a replay, asked for when each is submitted."""

    def __init__(self, entries: list[Entry], pool: int, every: int) -> None:
        self._replay = Replay(entries, pool, POLICIES["ours"][1])
        self._every = every
        # Index of an entry -> what its job was told; only of jobs that did not start at once.
        self.told: dict[int, Told | None] = {}

    def run(self) -> list[float]:
        """Replay the trace; the start of each job."""
        return [one.start for one in self._replay.run(on_submit=self._ask)]

    def _ask(self, key: JobKey, now: float) -> None:
        job = self._replay.state.jobs.get(key)
        if number_of(key) % self._every == 0 and job is not None and job in self._replay.state.ready:
            self.told[number_of(key) - 1] = self._asked(job, now)

    def _asked(self, job: Job, now: float) -> Told | None:
        state = self._replay.state
        query = eta_query_of(state, job, now)
        start, sample = query.start(), query.case()
        if start is None or sample is None:
            return None
        state.eta_calibration.add_sample(job.key, sample)
        return Told(start, _limits_alone(sample), plain(state, job, now) if sample.is_bounded else inf)


def _limits_alone(sample: EtaSample) -> float:
    return sample.worst_s if sample.is_bounded else inf


def plain(state: State, job: Job, wall: float) -> float:
    """How long it waits if all take as long as they may and those before it start as they fit; no start reservations."""
    free, mine, now = len(state.machine.idle), job.spec.gpus, wall
    ends = [
        (max(wall, (one.started_at or 0.0) + one.spec.time_limit_s), one.spec.gpus)
        for one in state.running.values()
    ]
    heapq.heapify(ends)
    snapshot, own = QueueSnapshot.of(state, now), state.ready.group_of(job)
    copy = snapshot.copy_of(own, job.key)
    assert copy is not None
    ahead = sorted(ahead_of(snapshot, (job.key, copy)), key=lambda one: one[0].order)
    line = [[group.shape.gpus, count, group.limit_s] for group, count in ahead]
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


class Scores:
    """What was told on one pool, or on several."""

    def __init__(self) -> None:
        self.hits: list[bool] = []
        self.widths: list[float] = []
        # By which factor the expected wait was wrong; ten minutes do not matter.
        self.off: list[float] = []
        # What limits alone say, in two ways; whether the start was within; which part of it ours was.
        self.others: dict[str, list[tuple[float, bool, float]]] = {"limits alone": [], "plain": []}

    def add(self, told: Told | None, wait: float, wall: float) -> None:
        start = wall + wait
        self.hits.append(told is not None and told.start.earliest <= start <= told.start.latest)
        self.widths.append(inf if told is None else told.start.latest - told.start.earliest)
        if told is not None:
            factor = (told.start.expected - wall + 600) / (wait + 600)
            self.off.append(max(factor, 1 / factor))
            for title, bound in (("limits alone", told.by_limits), ("plain", told.plain)):
                self.others[title].append((bound, wait <= bound, self.widths[-1] / max(bound, 1.0)))

    def __iadd__(self, other: Scores) -> Scores:
        self.hits += other.hits
        self.widths += other.widths
        self.off += other.off
        for title, bounds in other.others.items():
            self.others[title] += bounds
        return self

    def show(self, name: str) -> None:
        width = quantile(self.widths, 0.5) / 3600
        within = sum(self.hits) / max(1, len(self.hits))
        cells = [
            f"{name:<34} {len(self.hits):5} asked",
            f"{within:6.1%} within",
            f"median width {width:7.1f} h",
        ]
        cells.append(f"off {quantile(self.off, 0.5):.1f} times")
        for title, bounds in self.others.items():
            middle = quantile([bound for bound, _, _ in bounds], 0.5) / 3600
            if middle < inf and bounds:
                kept = sum(is_within for _, is_within, _ in bounds) / len(bounds)
                each = quantile([part for _, _, part in bounds], 0.5)
                cells.append(
                    f"{title} {middle:.1f} h ({kept:.0%} within): {width / middle:.2f} of it ({each:.2f})"
                )
        print("  ".join(cells), flush=True)


def score(name: str, entries: list[Entry], pool: int) -> Scores:
    survey = Survey(entries, pool, max(1, len(entries) // ASKING))
    starts = survey.run()
    scores = Scores()
    for place, told in survey.told.items():
        submit = entries[place].submit
        scores.add(told, starts[place] - submit, submit)
    scores.show(f"{name}, {pool} GPUs")
    return scores


def workload(
    trace: Path, pool: str, gpus: int, limits: bool, seed: int, load: float
) -> tuple[list[Entry], int]:
    entries = read_trace(trace, {}, {"cluster": pool} if pool else {})
    count = gpus or trace_transform.pool_for(entries, load)
    entries = sorted(trace_transform.fit_to_pool(entries, count, load if gpus else 0.0, Random(seed)))
    if seed:
        entries = trace_transform.jitter(entries, JITTER_S, Random(seed))
    return (trace_transform.add_limits(entries, Random(seed)) if limits else entries), count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("pools", nargs="*")
    parser.add_argument(
        "--gpus", type=int, default=0, help="a box of so many, and as much of the trace as fills it"
    )
    parser.add_argument("--limits", action="store_true", help="only with limits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", type=float, default=0.9)
    asked = parser.parse_args()
    boxes = [(pool, asked.gpus) for pool in asked.pools] or [*((pool, 0) for pool in POOLS), ("0e4a51", 8)]
    modes = (True,) if asked.limits else (False,) if asked.pools else (True, False)
    if asked.trace.suffix == ".swf":
        boxes, modes = [("", asked.gpus)], (False,)
    for limits in modes:
        added = " with limits" if limits else ""
        total = Scores()
        for pool, gpus in boxes:
            name = (pool or asked.trace.stem) + (f" on {gpus}" if gpus else "") + added
            total += score(name, *workload(asked.trace, pool, gpus, limits, asked.seed, asked.load))
        if len(boxes) > 1:
            total.show("all together" + added)


if __name__ == "__main__":
    main()
