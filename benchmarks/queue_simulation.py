"""Measure the cost of a forecast: the queue simulation, and the same queue run to its end by the engine.

    python -m benchmarks.queue_simulation
    python -m benchmarks.queue_simulation 2000 20000

For each length of the queue: CPU seconds for the copy that a forecast needs, and for the forecast. See docs/adr/0010.
"""

from __future__ import annotations

import copy
import heapq
import sys
from random import Random
from time import process_time

from gflow.core.effects import Start
from gflow.core.engine import step
from gflow.core.events import Exited
from gflow.core.forecast.queue_simulation import EXPECTED, QueueSimulation
from gflow.core.forecast.queue_snapshot import QueueSnapshot, waiting_jobs
from gflow.core.ids import number_of
from gflow.core.model import Moment
from gflow.core.policy import Policy
from gflow.core.state.state import State, restore
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry

GPUS = 8


def queue_of(count: int) -> tuple[Replay, list[Entry]]:
    """So many jobs of 200 kinds, behind one that has all GPUs."""
    dice = Random(3)
    entries = [Entry(0.0, 3600.0, GPUS)]
    for place in range(count):
        kind = dice.randrange(200)
        gpus = dice.choice((1, 1, 1, 2, 4, 8))
        entries.append(Entry(10.0 + place / 100, 600.0 + 100 * kind, gpus, name=f"kind-{kind}"))
    replay = Replay(entries, GPUS, Policy(fair_share=False), exact=True)
    for entry in entries:
        replay._apply(step(replay.state, replay._submission(entry, entry.submit)), entry.submit)
    return replay, entries


def simulate(replay: Replay, now: float) -> tuple[float, float]:
    began = process_time()
    snapshot = QueueSnapshot.of(replay.state, now)
    copied = process_time()
    QueueSimulation(snapshot, EXPECTED, waiting_jobs(snapshot, True)).all()
    return copied - began, process_time() - copied


def run_engine(replay: Replay, entries: list[Entry], now: float) -> tuple[float, float]:
    began, old = process_time(), replay.state
    state = State(cpus=old.machine.cpus, memory_mib=old.machine.memory_mib, policy=old.policy)
    state.machine.see_gpus(old.machine.gpus.values())
    restore(state, map(copy.copy, old.jobs.values()), {}, [], old.jobs.next_number, Moment(now, now))
    copied, ends = process_time(), list(replay._ends)
    while ends:
        now, key, attempt = heapq.heappop(ends)
        for effect in step(state, Exited(at=Moment(now, now), key=key, attempt=attempt, code=0)):
            if isinstance(effect, Start):
                end = now + entries[number_of(effect.key) - 1].duration
                heapq.heappush(ends, (end, effect.key, effect.attempt))
        state.jobs.ended.clear()
    return copied - began, process_time() - copied


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or ("2000", "20000")):
        replay, entries = queue_of(count)
        now = entries[-1].submit + 1.0
        print(f"{count:>7,} jobs   simulation: copy %.3f s, run %.3f s" % simulate(replay, now), end="")
        print("   engine: copy %.3f s, run %.2f s" % run_engine(replay, entries, now))
