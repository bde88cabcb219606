"""Measure the speed of the simulator: many jobs resampled from a trace, on a pool sized by load or given.

    python -m benchmarks.million philly.csv                         a million jobs, load 0.9
    python -m benchmarks.million philly.csv --pool 8 --jobs 100000  thinned to an 8-GPU box

The trace is repeated as often as needed. Each repetition resamples its jobs (seeded, with replacement), so that days
and bursts stay as they are and no two rounds are the same.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from gflow.core import engine
from gflow.simulate import trace_transform
from gflow.simulate.metrics import measure
from gflow.simulate.replay import POLICIES
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry, read_trace


def resampled(trace: list[Entry], jobs: int, random: Random) -> Iterator[Entry]:
    """The requested number of jobs: repetitions of the trace, each resampled."""
    span = trace_transform.span(trace)
    for number in range(jobs):
        drawn = random.choice(trace)
        yield drawn._replace(submit=drawn.submit + span * (number // len(trace)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--pool", type=int, help="GPUs; the trace is thinned to the load then")
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--policy", default="ours", choices=POLICIES)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    random = Random(asked.seed)
    trace = read_trace(asked.trace, {}, {})
    pool = asked.pool or trace_transform.pool_for(trace, asked.load)
    if asked.pool:
        trace = trace_transform.fit_to_pool(trace, pool, asked.load, random)
    entries = sorted(resampled(trace, asked.jobs, random))
    began, cpu = time.monotonic(), time.process_time()
    ran = Replay(entries, pool, POLICIES[asked.policy][1]).run()
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    found = measure(ran, pool, 8)
    how = "Python" if engine.__file__.endswith(".py") else "compiled"
    print(f"{len(ran):,} jobs on {pool} GPUs, {asked.policy}, engine: {how}")
    print(f"{took:.0f} s by the clock, {cpu:.0f} s of CPU: {len(ran) / cpu:,.0f} jobs per second of one core")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    print(f"mean wait {found['mean_wait_s'] / 3600:.1f} h, utilisation {found['utilisation']:.1%}")


if __name__ == "__main__":
    main()
