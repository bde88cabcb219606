"""How right `gjob why` is: a trace is replayed, and every Nth job that has to wait is asked for when it was submitted.

    python -m benchmarks.why philly.csv --where cluster=103959 [--every 5] [--gpus 8] [--limits]

Prints which part of the jobs started within the interval (eight in ten are promised), how wide it was in the middle,
and between which parts of the wait that was foretold eight in ten starts lay.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

from gflow.core.forecast import LATE, SLACK_S, Start, _played, expected_start
from gflow.core.ids import job_key
from gflow.simulate import shaping
from gflow.simulate.measure import quantile
from gflow.simulate.policies import POLICIES
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry, read_trace


class Asking(Replay):
    """A replay in which some of the jobs ask when they will start."""

    every = 5

    def __init__(self, entries: list[Entry], pool: int) -> None:
        super().__init__(entries, pool, POLICIES["ours"][1])
        self.told: dict[int, Start | None] = {}
        # Within which time each would start if all took as long as their limits.
        self.bounds: dict[int, float] = {}
        self._count = 0

    def _take(self, effects, now):  # type: ignore[no-untyped-def]
        super()._take(effects, now)
        latest = self.state.next_number - 1
        if latest <= self._count:
            return
        self._count = latest
        job = self.state.jobs.get(job_key(latest))
        if latest % self.every == 0 and job is not None and job in self.state.ready:
            self.told[latest - 1] = expected_start(self.state, job, now)
            if job.spec.time_limit_s:
                self.bounds[latest - 1] = (_played(self.state, job, now, by_limits=True) or now) - now


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--where", default="")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--limits", action="store_true", help="compare with what time limits alone would say")
    asked = parser.parse_args()
    entries = read_trace(asked.trace, {}, dict([asked.where.split("=")]) if asked.where else {})
    pool = asked.gpus or shaping.pool_for(entries, 0.9)
    entries = sorted(shaping.fitted(entries, pool, 0.9 if asked.gpus else 0.0, Random(0)))
    if asked.limits:
        entries = shaping.limited(entries, Random(0))
    Asking.every = asked.every
    replay = Asking(entries, pool)
    replay.run()
    inside, widths, parts = [], [], []
    for place, told in replay.told.items():
        if told is None:
            inside.append(False)
            continue
        start, submit = replay.starts[place], entries[place].submit
        inside.append(told.earliest <= start <= told.latest)
        widths.append(told.latest - told.earliest)
        parts.append((start - submit) / max(60.0, (told.latest - submit - SLACK_S) / LATE))
    print(
        f"{len(inside)} asked, {sum(inside) / max(1, len(inside)):.0%} within the interval, "
        f"half of the intervals under {quantile(widths, 0.5) / 3600:.1f} h; "
        f"wait / foretold wait: 10 % under {quantile(parts, 0.1):.2f}, half under {quantile(parts, 0.5):.2f}, "
        f"90 % under {quantile(parts, 0.9):.2f}"
    )
    if replay.bounds:
        kept = [replay.starts[one] - entries[one].submit <= bound for one, bound in replay.bounds.items()]
        print(
            f"limits alone: half of the intervals under {quantile(list(replay.bounds.values()), 0.5) / 3600:.1f} h, "
            f"{sum(kept) / len(kept):.0%} within"
        )


if __name__ == "__main__":
    main()
