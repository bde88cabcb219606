"""Early stopping and the ends of groups, in generated worlds with restarts and power cuts.

The reference judges every report from all that was ever said, kept in plain dictionaries; the engine has only
its records, which restarts take from the store.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from statistics import median

import pytest

from gflow.core.events import Cancel, Progressed, Submit, Update
from gflow.core.ids import JobKey, job_key
from gflow.core.model import Job, JobProgress, JobState
from gflow.core.state.groups import Groups
from gflow.store.sqlite import SqliteStore
from gflow.testing import spec
from gflow.testing.builders import USERS
from tests.property import operations
from tests.property.dice import Dice, Rolled
from tests.property.fuzz import some_policy
from tests.property.world import World

SEED = int(os.environ.get("GFLOW_SEED", "0"))
STEPS = 400
AT, MEDIAN, ANY, NAN = "loss > 2 at step 3", "loss above median at step 3", "loss > 4", "loss is nan"
RULES = ((), (AT,), (MEDIAN,), (MEDIAN,), (MEDIAN, AT), (ANY, NAN))
LOSSES = (1.0, 0.0, 1.5, 2.0, 2.5, 3.0, 5.0, None)
Report = Callable[[World, Dice], None]


class Reference:
    """Group (or job) -> rule -> job -> the value at its step."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, str], dict[JobKey, float]] = {}

    def is_met(self, job: Job, report: JobProgress) -> bool:
        """Whether a rule is met by this report of a job that is not being stopped."""
        met = [self._judge(job, rule, report) for rule in job.spec.stop_when]
        return any(met)

    def _judge(self, job: Job, rule: str, report: JobProgress) -> bool:
        loss = report.loss
        if rule == NAN:
            return "loss" in report.nan
        if loss is None or (rule == ANY and loss <= 4):
            return False
        if rule == ANY:
            return True
        known = self.values.setdefault((job.spec.group, rule), {})
        if report.step < 3 or job.key in known:
            return False
        siblings = list(known.values()) if job.spec.group else []
        known[job.key] = loss
        if rule == AT:
            return loss > 2
        return len(siblings) >= 3 and loss > median(siblings)


def submit_group(world: World, dice: Dice) -> None:
    """A sweep, an array or a single job, with or without rules."""
    number = world.state.jobs.next_number
    rules = dice.pick(RULES)
    made = spec(cpus=0, stop_when=rules, group=number, requeue=dice.chance(20), max_retries=dice.below(2))
    if dice.chance(30):
        made = spec(cpus=0, stop_when=rules, array="0-5")
    count = 1 if made.array else dice.pick((5, 1, 2, 8))
    world.apply(Submit(at=world.clock.now(), uid=1001, user=USERS[1001], specs=(made,) * count, outcomes={}))


def cap(world: World, dice: Dice) -> None:
    """Single jobs become a group."""
    single = [key for key, job in world.state.jobs.items() if not job.spec.group and not job.is_array]
    keys = tuple(single[:3])
    if keys:
        fields = {"max_concurrent": 9}
        world.apply(Update(at=world.clock.now(), uid=0, keys=keys, fields=fields, outcomes={}))


def cancel_some(world: World, dice: Dice) -> None:
    keys = tuple(key for key in world.state.jobs if dice.chance(10))
    world.apply(Cancel(at=world.clock.now(), uid=0, keys=keys))


def reporting(reference: Reference) -> Report:
    def report(world: World, dice: Dice) -> None:
        running = list(world.reference.runs)
        if not running:
            return
        key = dice.pick(running)
        job, loss = world.state.jobs[key], dice.pick(LOSSES)
        steps = dice.pick((0, 0, 4))
        said = JobProgress(
            at=world.clock.wall, step=dice.below(5), steps=steps, loss=loss, nan=() if loss else ("loss",)
        )
        was_stopping = key in world.reference.stopping
        expected = not was_stopping and reference.is_met(job, said) and not (steps and said.step >= steps)
        world.apply(Progressed(at=world.clock.now(), key=key, attempt=job.attempt, progress=said))
        assert (key in world.reference.stopping) == (was_stopping or expected), f"judged wrongly: {job.label}"
        if expected:
            assert str(job.reason).startswith("StoppedEarly: loss"), "stopped without its reason"

    return report


def check_entries(world: World) -> None:
    """Each group that is over has one entry about its end, with all of its jobs; others have none."""
    jobs = list(world.store.jobs(active=False))
    entries = [line for _, line in world.store.audit_after(0, 1 << 30)]
    ends = Counter(line.detail.partition(":")[0] for line in entries if line.what == "group ended")
    failures = Counter(line.detail.partition(":")[0] for line in entries if line.what == "group failure")
    counted = {
        line.detail.partition(":")[0]: sum(map(int, re.findall(r" (\d+) ", line.detail.partition(" in ")[0])))
        for line in entries
        if line.what == "group ended"
    }
    for group in {job.spec.group for job in jobs if job.spec.group}:
        name = f"group g{group}" if group > 0 else f"array {-group}"
        members = [job for job in jobs if job.spec.group == group and not job.is_array]
        array = world.store.job(job_key(-group)) if group < 0 else None
        is_over = array.is_final if array else all(job.is_final for job in members) and len(members) > 1
        assert ends[name] == is_over, f"{name} ended {ends[name]} times"
        has_failed = any(job.state in (JobState.FAILED, JobState.TIMEOUT) for job in members)
        is_group = group < 0 or len(members) > 1
        assert failures[name] == (has_failed and is_group), f"{name} failed {failures[name]} times"
        unstarted = len(array.progress.pending) if array and array.progress else 0
        assert not is_over or counted[name] == len(members) + unstarted, f"{name} counts {counted[name]}"


def run_groups(number: int, disk: SqliteStore | None = None) -> World:
    dice, reference = Rolled(f"{SEED}:groups:{number}"), Reference()
    world = World(disk=disk, policy=some_policy(number))
    report = reporting(reference)
    often = (report,) * 8 + (operations.exit_,) * 4 + (submit_group,) * 2
    seldom = (cap, cancel_some, operations.hold, operations.release, operations.tick, operations.restart,
              operations.reboot, operations.lose_turn)  # fmt: skip
    while world.steps < STEPS:
        if len(world.state.jobs) > operations.MOST_ACTIVE:
            operations.submit(world, dice)
        operations.act(world, dice, dice.pick(often) if dice.chance(85) else dice.pick(seldom))
    world.restart()
    check_entries(world)
    return world


@pytest.mark.parametrize("number", range(4))
def test_rules_and_ends_of_groups_hold_in_generated_worlds(number):
    world = run_groups(number)
    said = Counter(line.what for _, line in world.store.audit_after(0, 1 << 30))
    assert said["early stop"] > 3 and said["group ended"] > 3 and world.restarts > 3, (
        "the world was too quiet"
    )


def test_records_of_groups_in_a_database(tmp_path):
    disk = SqliteStore(tmp_path / "gflow.db")
    world = run_groups(100, disk)
    assert disk.load().meta == world.store.load().meta
    disk.close()


def forgetful(monkeypatch):
    """A daemon that comes back does not know what was judged."""
    monkeypatch.setattr(Groups, "load", lambda self, meta: None)


def counting_itself(monkeypatch):
    """A job is compared with a median that its own value belongs to."""
    original = Groups.values_of
    monkeypatch.setattr(Groups, "values_of", lambda self, group, rule: [*original(self, group, rule), 9e9])


@pytest.mark.parametrize("mutant", [forgetful, counting_itself])
def test_mutant_is_caught(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        for number in range(4):
            run_groups(number)
