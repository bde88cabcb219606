"""The same world as the property tests, with plain seeded dice and for as long as you like.

    python -m tests.property.fuzz --steps 1000000 --seed 1

Every world has a seed of its own; a failure prints it, and `--world N` runs that one again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from gflow.config.table import STRATEGIES
from gflow.core.policy import Policy
from gflow.store.port import Store
from gflow.store.sqlite import SqliteStore
from tests.property.dice import Rolled
from tests.property.operations import act
from tests.property.world import World

STEPS_PER_WORLD = 1000


class Found(AssertionError):
    """A world failed: which, after how many steps, and what happened last."""

    def __init__(self, seed: int, number: int, world: World, error: BaseException) -> None:
        self.steps = world.steps
        self.error = error
        super().__init__(
            f"seed {seed}, world {number}, step {world.steps}: {type(error).__name__}: {error}\n"
            f"  {world.event_log()}\nagain: python -m tests.property.fuzz --seed {seed} --world {number}"
        )


def some_policy(number: int) -> Policy:
    """Another one for every world, so that start reservations are made early, at once and never."""
    return Policy(
        strategy=STRATEGIES[number % len(STRATEGIES)],
        patience=(10.0, 1.0, -1.0, 0.0, 0.5)[number % 5],
        order=("shortest", "shortest", "arrival")[number // 5 % 3],
        lengths=("history", "limits")[number // 3 % 2],
        backfill=number % 7 != 6,
    )


def run_world(seed: int, number: int, steps: int = STEPS_PER_WORLD, disk: Store | None = None) -> World:
    """One world of at least `steps` events."""
    dice = Rolled(f"{seed}:{number}")
    world = World(disk=disk, policy=some_policy(number))
    try:
        while world.steps < steps:
            act(world, dice)
        world.restart()
    except Exception as error:
        raise Found(seed, number, world, error) from error
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--world", type=int, help="only this one")
    parser.add_argument("--sqlite", action="store_true", help="a database beside the store in memory")
    options = parser.parse_args()
    if options.world is not None:
        _run(options, options.world)
        return
    began = time.monotonic()
    total: Counter[str] = Counter()
    while total["steps"] < options.steps:
        world = _run(options, total["worlds"])
        total.update(worlds=1, steps=world.steps, refusals=world.refusals, restarts=world.restarts)
        if not total["worlds"] % 50 or total["steps"] >= options.steps:
            counts = ", ".join(f"{count:,} {what}" for what, count in total.items())
            print(f"seed {options.seed}: {counts} in {time.monotonic() - began:.0f} s", flush=True)


def _run(options: argparse.Namespace, number: int) -> World:
    if not options.sqlite:
        return run_world(options.seed, number)
    with tempfile.TemporaryDirectory() as folder:
        disk = SqliteStore(Path(folder) / "gflow.db")
        try:
            return run_world(options.seed, number, disk=disk)
        finally:
            disk.close()


if __name__ == "__main__":
    main()
