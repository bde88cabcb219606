"""Generated events of a daemon: requests, ends of jobs, clocks, GPUs, power cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from gflow.core.events import (
    Abandon,
    Arrive,
    Cancel,
    Claim,
    Close,
    Drain,
    Event,
    Exited,
    Foresee,
    GpusSeen,
    Hold,
    Idled,
    IdleSeen,
    LeasesSeen,
    Open,
    Overran,
    Progressed,
    Reclaimed,
    Release,
    Restrict,
    Stage,
    Submit,
    Tick,
    Unclaim,
    Update,
)
from gflow.core.forecast.start_time import eta_query_of
from gflow.core.ids import TASK_MASK, JobKey, job_key, number_of
from gflow.core.model import PARENT_FIELDS, Block, Idle, Job, JobProgress, JobState, Spec
from gflow.core.reasons import parse
from gflow.core.task_set import parse_tasks
from gflow.daemon.loop.bulk_submission import recovery_changes
from gflow.daemon.loop.commands import RedoCommand, named_parents
from gflow.errors import Forbidden, NotFound, Refused, UsageError
from gflow.store.bulk import OpenSubmission
from gflow.testing import spec
from gflow.testing.builders import USERS
from gflow.testing.clock import DAY_S
from gflow.wire.requests import References
from gflow.wire.update import Change
from tests.property.dice import Dice
from tests.property.world import POOL, World

UIDS = (1001, 1002)
MOST_ACTIVE = 60
NAMES = ("train", "report", "")
ARRAYS = ("0-3", "7", "1-5:2", "0-6:3", "1,3,5-7", "0-1", "0-6:2,1-5:2", "0-30")
RETRY_ON = (
    ("timeout",),
    ("oom", "exit:75"),
    ("signal:9",),
    ("lost", "start"),
    ("any",),
    ("failed",),
    ("exit",),
)
SECONDS = (0.0, 0.0, 0.5, 1.0, 30.0)
PROBLEMS = ("Lost", "Reboot", "StartFailed: no", "Leased", "Deferred: no", "OutOfMemory: used 2 of 1")
GPU_COUNTS = (1, 1, 2, 3, 4, 6, 9)
BLOCKS = (Block("Unmanaged", "eve, python"), Block("Unhealthy", "Xid 79"), Block("Lost", "GPU is lost"))
GPU_MEMORY = (10 << 10, 24 << 10, 40 << 10, 80 << 10, 200 << 10)
Fields = dict[str, Any]


# ---------------------------------------------------------------- who and which


def some_key(world: World, dice: Dice) -> JobKey:
    """A job that is or was, a task that waits or ran, sometimes nothing at all."""
    kind = dice.below(10)
    active = list(world.state.jobs)
    if kind < 5 and active:
        return dice.pick(active)
    if kind < 8 and active:
        key = dice.pick(active)
        tasks = sorted(world.arrays.get(number_of(key), ()))
        return job_key(number_of(key), dice.pick(tasks)) if tasks else key
    latest = world.state.jobs.next_number
    number = max(0, latest - dice.below(40)) if kind < 9 else latest + dice.below(3)
    return job_key(number, dice.below(8) if dice.chance(30) else None)


def some_keys(world: World, dice: Dice) -> tuple[JobKey, ...]:
    return tuple(some_key(world, dice) for _ in range(1 + dice.pick((0, 0, 0, 1, 2))))


def owner_of(world: World, keys: tuple[JobKey, ...], dice: Dice) -> int:
    """The caller: mostly one with permission."""
    job = world.state.jobs.get(keys[0]) or world.state.jobs.array_with(keys[0])
    return dice.pick((job.uid if job else 1001, 0, *UIDS)) if dice.chance(30) else job.uid if job else 1001


def outcomes_of(world: World, keys: set[JobKey]) -> dict[JobKey, JobState]:
    """As the daemon does: what the engine has forgotten is asked of the store."""
    return world.store.outcomes(sorted(key for key in keys if not world.state.jobs.is_active(key)))


# ---------------------------------------------------------------- submit


def _gpus(world: World, dice: Dice) -> Fields:
    fields: Fields = {"gpus": dice.pick(GPU_COUNTS)}
    if dice.chance(40):
        fields["gpu_memory_mib"] = dice.pick(GPU_MEMORY)
        fields["shared"] = dice.chance(70)
    if dice.chance(15):
        fields["gpu_type"] = dice.pick(("a100", "RTX", "H100"))
    return fields


def _depends(world: World, dice: Dice) -> Fields:
    return {"depends_on": some_keys(world, dice), "no_auto_cancel": dice.chance(30)}


def _depends_any(world: World, dice: Dice) -> Fields:
    return {"depends_any": some_keys(world, dice), "no_auto_cancel": dice.chance(30)}


def _depends_otherwise(world: World, dice: Dice) -> Fields:
    kind = dice.pick(("depends_end", "depends_failure", "depends_start", "depends_start"))
    return {kind: some_keys(world, dice), "no_auto_cancel": dice.chance(30)}


def _singleton(world: World, dice: Dice) -> Fields:
    return {"name": dice.pick(NAMES), "singleton": dice.chance(70)}


def _begin(world: World, dice: Dice) -> Fields:
    return {"begin_at": world.clock.wall + dice.pick((30.0, 5.0, 3600.0, DAY_S + 7, -100.0))}


OPTIONS: tuple[Callable[[World, Dice], Fields], ...] = (
    _gpus,
    _gpus,
    _gpus,
    lambda world, dice: {"cpus": dice.below(5)},
    lambda world, dice: {"memory_mib": dice.pick((8 << 10, 30 << 10, 64 << 10, 65 << 10))},
    lambda world, dice: {"priority": dice.pick((0, 50, 255))},
    lambda world, dice: {"array": dice.pick(ARRAYS)},
    lambda world, dice: {"array": dice.pick(ARRAYS), "max_concurrent": 1 + dice.below(3)},
    lambda world, dice: {"max_concurrent": 1 + dice.below(3)},
    _depends,
    _depends,
    _depends_any,
    _depends_otherwise,
    _depends_otherwise,
    _singleton,
    _singleton,
    _begin,
    lambda world, dice: {"hold": True},
    lambda world, dice: {"max_retries": 1 + dice.below(2)},
    lambda world, dice: {"max_retries": 1 + dice.below(8), "retry_delay_s": dice.pick((1, 30, 5000))},
    lambda world, dice: {"max_retries": 2, "retry_on": dice.pick(RETRY_ON), "retry_delay_s": dice.below(2)},
    lambda world, dice: {"requeue": True},
    lambda world, dice: {"time_limit_s": dice.pick((10, 60, 3600, 2 * int(DAY_S)))},
    lambda world, dice: {"time_limit_s": dice.pick((60, 3600)), "warning": (10, dice.pick((5, 30, 100)))},
    lambda world, dice: {"allow_unsatisfiable": True},
    lambda world, dice: {"gpus": 1, "stop_if_idle_s": dice.pick((60, 600))},
    lambda world, dice: {"gpus": dice.pick((1, 2, 4)), "shared": False, "preemptible": True},
    lambda world, dice: {"gpus": dice.pick((1, 2)), "shared": False, "preemptible": True, "priority": 0},
)


def some_spec(world: World, dice: Dice) -> Spec:
    fields: Fields = {}
    for _ in range(dice.below(5)):
        fields |= dice.pick(OPTIONS)(world, dice)
    if not fields.get("gpus") or fields.get("shared"):
        fields.pop("preemptible", None)  # does not go together (see core.together)
    return spec(**fields)


def a_submission(world: World, dice: Dice) -> Event:
    """1 to 4 specs; those with a cap of their own are a group, as the daemon makes it."""
    group = world.state.jobs.next_number
    specs = []
    for _ in range(1 + dice.pick((0, 0, 1, 3))):
        made = some_spec(world, dice)
        if made.max_concurrent and not made.array:
            made = msgspec.structs.replace(made, group=group)
        specs += [made] * dice.pick((1, 1, 2))
    specs = [_after_neighbours(made, index, group, dice) for index, made in enumerate(specs[:4])]
    outcomes = outcomes_of(world, {key for made in specs for key in made.parents})
    uid = dice.pick(UIDS)
    return Submit(at=world.clock.now(), uid=uid, user=USERS[uid], specs=tuple(specs), outcomes=outcomes)


def _after_neighbours(made: Spec, index: int, first: int, dice: Dice) -> Spec:
    """Sometimes one that waits for those submitted with it, as the dependents of a redone job do."""
    if not index or not dice.chance(20):
        return made
    parents = (job_key(first + dice.below(index)), *made.depends_on)
    return msgspec.structs.replace(made, depends_on=parents)


def a_redo(world: World, dice: Dice) -> Event:
    """A redo of a job that exists or existed; perhaps with those that were cancelled because of it."""
    key = some_key(world, dice)
    uid = owner_of(world, (key,), dice)
    fields = dice.pick(CHANGES)(world, dice) if dice.chance(30) else {}
    fields = {name: value for name, value in fields.items() if name not in PARENT_FIELDS}
    change = Change(fields=fields, references=References())
    command = RedoCommand(
        uid,
        USERS[uid],
        "token",
        [key],
        change,
        clear_deps=dice.chance(50),
        cascade=dice.chance(60),
        origin="test",
    )
    return command.event(world.state, world.store, world.clock.now())


def redo(world: World, dice: Dice) -> None:
    with suppress(Refused, NotFound, Forbidden, UsageError):  # a command may be refused before it is an event
        world.apply(a_redo(world, dice))


def submit(world: World, dice: Dice) -> None:
    if len(world.state.jobs) > MOST_ACTIVE:
        oldest = tuple(sorted(world.state.jobs)[:20])
        world.apply(Cancel(at=world.clock.now(), uid=0, keys=oldest, now=True))
    else:
        world.apply(a_submission(world, dice))


# ---------------------------------------------------------------- in parts


def submit_in_parts(world: World, dice: Dice) -> None:
    """Jobs that come in parts while other things happen: all of them are there at the end, or none."""
    wanted, at = a_submission(world, dice), world.clock.now
    assert isinstance(wanted, Submit)
    specs = [*wanted.specs, *(msgspec.structs.replace(one, name="more") for one in wanted.specs)]
    projects = Counter(one.project for one in specs if one.project)
    opening = Open(at=at(), uid=wanted.uid, user=wanted.user, count=len(specs), projects=dict(projects))
    if len(world.state.jobs) > MOST_ACTIVE or not world.apply(opening):
        return
    first = world.state.jobs.next_number - len(specs)
    record = OpenSubmission(first, len(specs), wanted.uid, "test")
    world.changes.bulk[first] = record
    world.unseen |= set(range(first, first + len(specs)))
    is_whole = _stage(world, dice, first, specs)
    if is_whole and not dice.chance(20):
        world.commit()  # the daemon commits each part before it closes the submission
        world.apply(Close(at=at(), uid=wanted.uid, first=first))
        world.changes.bulk[first] = msgspec.structs.replace(record, closed=True)
        _come_in(world, dice, first, specs)
        return
    world.apply(Abandon(at=at(), first=first))
    if dice.chance(50):  # as a daemon that was killed finds it
        world.commit()
        for store in filter(None, (world.store, world.disk)):
            store.commit(recovery_changes(store, set()))
    else:
        world.changes.discarded.append(record.span)
        world.changes.bulk[first] = None
    world.restart()


def _stage(world: World, dice: Dice, first: int, specs: list[Spec]) -> bool:
    for start in range(0, len(specs), 2):
        if dice.chance(40):
            dice.pick((exit_, cancel, tick, submit, hold, update))(world, dice)
        if dice.chance(50):
            world.commit()
        part = tuple(specs[start : start + 2])
        outcomes = outcomes_of(world, {key for made in part for key in made.parents})
        if not world.apply(Stage(at=world.clock.now(), first=first, specs=part, outcomes=outcomes)):
            return False
        assert not any(first <= number_of(key) < first + len(specs) for key in world.state.jobs), "seen early"
        assert world.store.between(first, first + len(specs) - 1) == [], "seen early on the disk"
    return True


def _come_in(world: World, dice: Dice, first: int, specs: list[Spec]) -> None:
    numbers = range(first, first + len(specs))
    world.unseen -= set(numbers)
    for number, one in zip(numbers, specs, strict=True):
        if one.array:
            world.arrays[number] = frozenset(parse_tasks(one.array))
    assert all(job_key(number) in world.state.jobs for number in numbers), "not all of them came"
    if dice.chance(50):
        world.commit()
        assert len(world.store.between(first, numbers[-1])) == len(specs), "not all of them are durable"
    while world.state.arriving and dice.chance(90):
        if dice.chance(40):
            dice.pick((exit_, cancel, tick, submit, hold, update, release))(world, dice)
        world.apply(Arrive(at=world.clock.now(), most=2))


def do_in_parts(world: World, dice: Dice) -> None:
    """Something is done to several jobs in parts; from the first moment on, none of them starts."""
    keys = tuple(dict.fromkeys(key for key in world.state.jobs if not key & TASK_MASK and dice.chance(40)))
    action = dice.pick((a_cancel, a_hold, an_update))(world, dice)
    assert isinstance(action, (Cancel, Hold, Update))
    parents = {key for key in keys for key in world.state.jobs[key].spec.parents}
    if isinstance(action, Update):
        parents |= named_parents(action.fields)
        action = msgspec.structs.replace(action, outcomes=outcomes_of(world, parents))
    action = msgspec.structs.replace(action, uid=0, keys=keys)
    world.apply(Claim(at=world.clock.now(), action=action))
    for key in keys:
        if dice.chance(30):
            dice.pick((exit_, tick, submit))(world, dice)
        if world.state.jobs.is_active(key):
            world.apply(msgspec.structs.replace(action, at=world.clock.now(), keys=(key,)))
    world.apply(Unclaim(at=world.clock.now(), keys=keys))


# ---------------------------------------------------------------- jobs end


def an_exit(world: World, dice: Dice) -> Event:
    """Mostly of a job that runs; sometimes of an attempt long over, or of no job."""
    running = list(world.reference.runs)
    stray = dice.chance(8) or not running
    key = some_key(world, dice) if stray else dice.pick(running)
    job = world.state.jobs.get(key)
    attempt = max(0, (job.attempt if job else 1) - (dice.below(3) if stray else 0))
    kind = dice.below(12)
    code, signal, problem = 0, None, ""
    if kind in (6, 7):
        code = dice.pick((1, 2, 75, 255))
    elif kind in (8, 9):
        code = 75
    elif kind == 10:
        code, signal = None, dice.pick((9, 15))
    elif kind == 11:
        code, problem = None, dice.pick(PROBLEMS)
    return Exited(
        at=world.clock.now(),
        key=key,
        attempt=attempt,
        code=code,
        signal=signal,
        problem=parse(problem),
        cpu_ms=dice.below(5000),
        peak_kib=dice.below(9000),
    )


def exit_(world: World, dice: Dice) -> None:
    world.apply(an_exit(world, dice))


def spin(world: World, dice: Dice) -> None:
    """A job that wants to be queued again and again: five quick ends and it is held."""
    eager = [key for key in world.reference.runs if world.state.jobs[key].spec.requeue]
    if not eager:
        return
    key = dice.pick(eager)
    for _ in range(6):
        run = world.reference.runs.get(key)
        if run is not None:
            world.clock.advance(dice.pick((1.0, 1.0, 1.0, 70.0)))
            world.apply(Exited(at=world.clock.now(), key=key, attempt=run.attempt, code=75))


# ---------------------------------------------------------------- people change their minds


def a_cancel(world: World, dice: Dice) -> Event:
    keys = some_keys(world, dice)
    return Cancel(
        at=world.clock.now(),
        uid=owner_of(world, keys, dice),
        is_operator=dice.chance(5),
        keys=keys,
        now=dice.chance(30),
    )


def a_hold(world: World, dice: Dice) -> Event:
    keys = some_keys(world, dice)
    return Hold(at=world.clock.now(), uid=owner_of(world, keys, dice), is_operator=dice.chance(5), keys=keys)


def a_release(world: World, dice: Dice) -> Event:
    held = [key for key, job in world.state.jobs.items() if job.state is JobState.HOLD]
    keys = (dice.pick(held),) if held and not dice.chance(30) else some_keys(world, dice)
    begin_at = _begin(world, dice)["begin_at"] if dice.chance(30) else None
    return Release(
        at=world.clock.now(),
        uid=owner_of(world, keys, dice),
        is_operator=dice.chance(5),
        keys=keys,
        begin_at=begin_at,
    )


CHANGES: tuple[Callable[[World, Dice], Fields], ...] = (
    lambda world, dice: {"priority": dice.pick((10, 0, 50, 255))},
    lambda world, dice: {"gpus": dice.below(4)},
    lambda world, dice: {"time_limit_s": dice.pick((10, 60, 3600, 0))},
    lambda world, dice: {"warning": (12, dice.pick((30, 5)))},
    lambda world, dice: {"max_concurrent": 1 + dice.below(3)},
    lambda world, dice: {"depends_on": some_keys(world, dice)},
    lambda world, dice: {"depends_any": some_keys(world, dice)},
    lambda world, dice: {"depends_on": ()},
    _depends_otherwise,
    lambda world, dice: {"name": dice.pick(NAMES)},
    lambda world, dice: {"no_auto_cancel": dice.chance(50)},
    lambda world, dice: {"max_retries": dice.below(3)},
    lambda world, dice: {"requeue": dice.chance(50)},
    lambda world, dice: {"stop_if_idle_s": dice.pick((0, 60))},
    lambda world, dice: {"preemptible": dice.chance(50)},
    lambda world, dice: {"cpus": dice.below(8)},
    lambda world, dice: {"memory_mib": dice.pick((8 << 10, 65 << 10))},
    _begin,
)


def an_update(world: World, dice: Dice) -> Event:
    keys = some_keys(world, dice)
    fields: Fields = {}
    for _ in range(1 + dice.chance(30)):
        fields |= dice.pick(CHANGES)(world, dice)
    jobs: list[Job | None] = [world.state.jobs.get(key) or world.state.jobs.array_with(key) for key in keys]
    parents = {key for job in jobs if job for key in msgspec.structs.replace(job.spec, **fields).parents}
    return Update(
        at=world.clock.now(),
        uid=owner_of(world, keys, dice),
        is_operator=dice.chance(5),
        keys=keys,
        fields=fields,
        outcomes=outcomes_of(world, parents),
        extend_s=dice.pick((0, 0, 0, 60, 3600)),
    )


def cancel(world: World, dice: Dice) -> None:
    world.apply(a_cancel(world, dice))


def hold(world: World, dice: Dice) -> None:
    world.apply(a_hold(world, dice))


def release(world: World, dice: Dice) -> None:
    world.apply(a_release(world, dice))


def update(world: World, dice: Dice) -> None:
    world.apply(an_update(world, dice))


# ---------------------------------------------------------------- clocks


def tick(world: World, dice: Dice) -> None:
    """An alarm rings; mostly the one that is due next."""
    due = [
        moment
        for moment in (
            _ahead(world.state.deadlines.next_limit(), world.clock.boot),
            _ahead(world.state.deadlines.next_warning(), world.clock.boot),
            _ahead(world.state.deadlines.next_retry(), world.clock.boot),
            _ahead(world.state.deadlines.next_begin(), world.clock.wall),
        )
        if moment is not None
    ]
    world.clock.advance(min(due) if due and dice.chance(60) else dice.pick((1.0, 0.0, 59.0, 600.0)))
    world.apply(Tick(at=world.clock.now()))


def _ahead(due: float | None, now: float) -> float | None:
    return None if due is None else max(0.0, due - now)


def suspend(world: World, dice: Dice) -> None:
    """The machine sleeps: both clocks have gone on when it wakes."""
    world.clock.advance(dice.pick((3600.0, 60.0, 2 * DAY_S)))
    _maybe_tick(world, dice)


def set_clock(world: World, dice: Dice) -> None:
    """The wall clock is set; the kernel tells us if a begin time is awaited."""
    world.clock.set_wall(dice.pick((DAY_S, -DAY_S, 3600.0, -3600.0)))
    _maybe_tick(world, dice)


def _maybe_tick(world: World, dice: Dice) -> None:
    if dice.chance(60):
        world.apply(Tick(at=world.clock.now()))


# ---------------------------------------------------------------- the machine


def restrict(world: World, dice: Dice) -> None:
    choice = dice.below(64 * 2)
    allowed = tuple(index for index in range(7 if choice > 120 else 6) if choice >> index & 1)
    event = Restrict(at=world.clock.now(), uid=0, allowed=None if dice.chance(50) else allowed)
    world.apply(event)


def drain(world: World, dice: Dice) -> None:
    """Nothing more starts, at all or on some GPUs; much oftener, things start again."""
    some = tuple(index for index in range(6) if dice.chance(30))
    on = dice.chance(40)
    gpus = some if dice.chance(60) else None
    world.apply(Drain(at=world.clock.now(), uid=0, on=on, gpus=gpus, reason="test"))
    if gpus is None and on and dice.chance(80):
        world.apply(Drain(at=world.clock.now(), uid=0, on=False))
    if gpus is None and not on and dice.chance(80):
        world.apply(Drain(at=world.clock.now(), uid=0, on=False, gpus=tuple(range(6))))


def reclaim(world: World, dice: Dice) -> None:
    """The cloud takes the machine away: all that runs is stopped; mostly it is kept after all."""
    here = set(world.reference.runs)
    world.apply(Reclaimed(at=world.clock.now(), why="aws takes it", left_s=dice.pick((None, 0.0, 120.0))))
    assert here <= world.reference.stopping, "a job continues on a machine that is taken away"
    assert set(world.reference.runs) == here, "a job starts on a machine that is taken away"
    if dice.chance(80):
        world.apply(Reclaimed(at=world.clock.now(), why=""))


def see_gpus(world: World, dice: Dice) -> None:
    """GPUs vanish and come back, fall ill, get strangers on them; those that are there are as they were."""
    present = dice.below(64) if dice.chance(30) else 63
    gpus = tuple(gpu for gpu in POOL if present >> gpu.index & 1)
    event = GpusSeen(
        at=world.clock.now(),
        gpus=gpus,
        blocked={gpu.index: dice.pick(BLOCKS) for gpu in gpus if dice.chance(25)},
        taken={gpu.index: dice.pick((256, 10 << 10)) for gpu in gpus if dice.chance(15)},
        faults={gpu.uuid: "Xid 79" for gpu in gpus if dice.chance(10)} if dice.chance(50) else None,
    )
    world.apply(event)


def overrun(world: World, dice: Dice) -> None:
    """A job takes more of its GPU than it said; or one that is over, or never shared, is blamed."""
    key = dice.pick(list(world.reference.runs)) if world.reference.runs else some_key(world, dice)
    attempt = world.reference.attempts.get(key, 1) - dice.chance(20)
    event = Overran(at=world.clock.now(), key=key, attempt=attempt, gpu=0, used_mib=90 << 10)
    was_alone = not (key in world.reference.runs and world.reference.runs[key].shape.shared)
    if was_alone:
        before = set(world.reference.stopping)
        world.apply(event)
        assert world.reference.stopping == before, "a job is stopped for memory that it never shared"
        return
    world.apply(event)
    stopped = key in world.reference.stopping
    assert stopped or attempt != world.reference.attempts[key], "a job that overran its memory goes on"


def progress(world: World, dice: Dice) -> None:
    """A job, of this attempt or an old one, says how far it is."""
    key = (
        dice.pick(list(world.reference.runs))
        if world.reference.runs and dice.chance(80)
        else some_key(world, dice)
    )
    attempt = world.reference.attempts.get(key, 1) - dice.chance(20)
    report = JobProgress(at=world.clock.now().wall, step=dice.below(100), steps=100, left_s=1.0)
    world.apply(Progressed(at=world.clock.now(), key=key, attempt=attempt, progress=report))
    job = world.state.jobs.get(key)
    heard = job is not None and job.progress_report is report
    assert heard == (key in world.reference.runs and attempt == world.reference.attempts[key]), (
        "heard of a stranger"
    )


def foresee(world: World, dice: Dice) -> None:
    """A forecast is made and noted: nothing else changes, and no job starts before now in it."""
    key, state, at = some_key(world, dice), world.state, world.clock.now()
    job, case = state.jobs.get(key), None
    if job is not None and job in state.ready:
        question = eta_query_of(state, job, at.boot)
        start, case = question.start(), question.case()
        assert start is None or start.earliest <= start.expected <= start.latest, "a forecast without sense"
        assert case is None or case.worst_s >= 0, "a forecast is in the past"
    world.apply(Foresee(at=at, key=key, case=case))
    waits = {
        key
        for key in state.eta_calibration.record.open
        if key in state.jobs and state.jobs[key] in state.ready
    }
    assert waits == state.eta_calibration.record.open.keys(), "a forecast for a job that does not wait"


def idle(world: World, dice: Dice) -> None:
    """Jobs leave their GPUs unused, or one does for so long that it may have to stop."""
    running = list(world.reference.runs)
    seen = {key: Idle(world.reference.attempts[key], 60.0, "idle") for key in running if dice.chance(30)}
    if dice.chance(20):
        seen[some_key(world, dice)] = Idle(dice.below(3), 60.0, "no job")
    world.apply(IdleSeen(at=world.clock.now(), idle=seen))
    assert world.state.running.unused.keys() <= world.reference.runs.keys(), (
        "a job that does not run leaves GPUs idle"
    )
    if not running:
        return
    key, seconds = dice.pick(running), dice.pick((60.0, 10.0, 5000.0))
    attempt = world.reference.attempts[key] - dice.chance(20)
    spec, before = world.state.jobs[key].spec, set(world.reference.stopping)
    over = spec.gpus and spec.stop_if_idle_s and seconds >= spec.stop_if_idle_s
    is_stopped = bool(over and attempt == world.reference.attempts[key] and key not in before)
    event = Idled(at=world.clock.now(), key=key, attempt=attempt, idle=Idle(attempt, seconds, "idle"))
    world.apply(event)
    assert world.reference.stopping - before == ({key} if is_stopped else set()), "idle and stopped wrongly"


def see_leases(world: World, dice: Dice) -> None:
    """Another person's daemon takes GPUs and gives them back."""
    taken = dice.below(64) if dice.chance(50) else 0
    foreign = {index: "eve" for index in range(6) if taken >> index & 1}
    world.apply(LeasesSeen(at=world.clock.now(), foreign=foreign))


def restart(world: World, dice: Dice) -> None:
    world.restart()


def reboot(world: World, dice: Dice) -> None:
    """The power fails: nothing that ran is left."""
    world.restart()
    before = world.clock.boot
    world.clock.reboot(dice.pick((60.0, 3600.0)))
    for key, run in sorted(world.reference.runs.items()):
        exited = Exited(
            at=world.clock.now(), key=key, attempt=run.attempt, code=None, problem=parse("Reboot")
        )
        # What a round starts while the ends come in is of the new boot, and lives.
        if run.started_boot <= before:
            world.apply(exited)
    world.commit()


def lose_turn(world: World, dice: Dice) -> None:
    world.lose_turn([partial(dice.pick(PEOPLE), world, dice) for _ in range(1 + dice.below(3))])


PEOPLE = (a_submission, a_cancel, a_hold, a_release, an_update, an_exit)
OPERATIONS: tuple[tuple[int, Callable[[World, Dice], None]], ...] = (
    (28, submit),
    (3, submit_in_parts),
    (2, do_in_parts),
    (30, exit_),
    (1, spin),
    (6, cancel),
    (4, hold),
    (5, release),
    (9, update),
    (2, redo),
    (7, tick),
    (2, suspend),
    (2, set_clock),
    (1, restrict),
    (1, drain),
    (1, reclaim),
    (2, see_gpus),
    (2, overrun),
    (2, idle),
    (2, progress),
    (1, foresee),
    (1, see_leases),
    (3, restart),
    (1, reboot),
    (1, lose_turn),
)
_WEIGHTED = [operation for weight, operation in OPERATIONS for _ in range(weight)]


def act(world: World, dice: Dice, operation: Callable[[World, Dice], None] | None = None) -> None:
    """One operation (any, unless it is said), some time after the one before; perhaps in the same turn."""
    world.clock.advance(dice.pick(SECONDS))
    (operation or dice.pick(_WEIGHTED))(world, dice)
    if not dice.chance(30):
        world.commit()
