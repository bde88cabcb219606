"""Invariants that hold after every step. Checked by tests, and by a daemon started with --paranoid."""

from __future__ import annotations

from collections import Counter

import msgspec

from gflow.core.ids import job_key, number_of, task_of
from gflow.core.model import Job, JobState
from gflow.core.scheduling.backfill import may_backfill, reservations_due
from gflow.core.scheduling.placement import placement
from gflow.core.state.dependencies import START
from gflow.core.state.machine import SLACK
from gflow.core.state.name_index import NameIndex
from gflow.core.state.quotas import QuotaUsage
from gflow.core.state.state import State


def check(state: State, *, settled: bool = True) -> None:
    """Check all invariants; raise AssertionError with the first that is broken. O(jobs).

    `settled`: whether a scheduling round has run since the state was built.
    """
    for job in state.jobs.values():
        _check_job(state, job)
    _check_no_dangling_keys(state)
    _check_open(state)
    _check_gpus(state)
    _check_counts(state)
    of_user = Counter(job.uid for job in state.jobs.values())
    for opened in state.open.values():
        if not opened.is_closed:
            of_user[opened.uid] += opened.count
    assert state.accounting.active_jobs == of_user, (
        f"people have {of_user}, not {state.accounting.active_jobs}"
    )
    _check_quota_usage(state)
    _check_dependencies(state)
    _check_names(state)
    _check_arrays(state)
    _check_buckets(state)
    if settled:
        _check_start_reservations(state)
        _check_nothing_startable(state)


def _check_quota_usage(state: State) -> None:
    """Recount the quota usage of users and projects."""
    counted = QuotaUsage()
    for job in state.jobs.values():
        counted.add(job)
        if job.key in state.running:
            counted.run(job)
    for opened in state.open.values():
        if not opened.is_closed:
            counted.reserve(opened.user, opened.projects, opened.count, 1)
            counted.weigh(opened.uid, opened.bytes, opened.links)
    for name in ("users", "projects", "bytes", "links"):
        assert getattr(counted, name) == getattr(state.accounting.quota_usage, name), (
            f"what {name} have is off"
        )


def _check_job(state: State, job: Job) -> None:
    assert state.jobs[job.key] is job, f"job {job.label} is filed under another key"
    assert not job.is_final, f"final job {job.label} is still in memory"
    places = [
        job.key in state.dependencies.waits,
        job.key in state.deadlines.later,
        job in state.ready,
        job.key in state.remote.pending,
        job.key in state.remote.jobs,
    ]
    submission = state.arriving.get(job.key)
    assert not submission or not any(places), f"job {job.label} arrives and is there already"
    places[0] = places[0] or submission is not None
    assert (job.remote is not None) == places[4], f"job {job.label} is and is not remote"
    if job.remote is not None and job.spec.races_here:
        races = job.state is JobState.QUEUED and not job.remote.hold and job.remote.kept is None
        assert places[2] == races, f"job {job.label} does and does not race here"
    if job.spec.races_here and (places[3] or places[4]):
        places[2] = False
    if job.state is JobState.QUEUED:
        assert sum(places) == 1, f"queued job {job.label} is in {sum(places)} places, not in one"
    elif job.state is JobState.HOLD:
        assert not any(places[1:]), f"held job {job.label} is still in the queue"
    else:
        assert not any(places[:4]), f"running job {job.label} is still in the queue"
        assert job.attempt > 0, f"job {job.label} runs without an attempt"
    owner = state.policy.owner
    assert owner is None or job.uid == owner, (
        f"job {job.label} is of uid {job.uid}, and only {owner}'s may run"
    )
    assert job.stopping is None or job.state is JobState.RUNNING, f"{job.label} stops without running"


def _check_open(state: State) -> None:
    """Staged submissions: staged jobs are not visible, arriving jobs are."""
    for first, opened in state.open.items():
        assert first == opened.first and first + opened.count <= state.jobs.next_number, "a stray submission"
        arriving = [key for key, whose in state.arriving.items() if whose == first]
        if opened.is_closed:
            assert not opened.jobs and opened.left == len(arriving) > 0, f"submission {first} miscounts"
        else:
            is_seen = arriving or any(key in state.jobs for key in opened.jobs)
            assert not is_seen, f"jobs of {first} are seen"
            assert len(opened.jobs) <= opened.count == opened.left, f"submission {first} miscounts"
    for whose in set(state.arriving.values()):
        assert not whose or whose in state.open, f"jobs of {whose} arrive, which is not open"


def _check_no_dangling_keys(state: State) -> None:
    for name, keys in (
        ("waits", state.dependencies.waits),
        ("later", state.deadlines.later),
        ("remote.pending", state.remote.pending),
        ("remote.jobs", state.remote.jobs),
        ("arriving", state.arriving),
    ):
        for key in keys:
            assert key in state.jobs, f"{name} knows {key}, which is not an active job"
    for key in state.dependencies.children:
        assert state.jobs.is_active(key), f"{key} has children and is not an active job"
    assert len(state.ready) == sum(job in state.ready for job in state.jobs.values()), (
        "an unknown job is queued"
    )


def _holding_resources(state: State) -> list[Job]:
    """Jobs that hold resources here: running jobs, and jobs for which GPUs are kept during a withdrawal."""
    kept = [
        msgspec.structs.replace(job, gpu_ids=job.remote.kept)
        for job in state.jobs.values()
        if job.remote is not None and job.remote.kept is not None
    ]
    return kept + _running(state)


def _running(state: State) -> list[Job]:
    return [
        job
        for job in state.jobs.values()
        if job.state is JobState.RUNNING and not job.is_array and job.remote is None
    ]


def _check_gpus(state: State) -> None:
    running = _holding_resources(state)
    expected: dict[int, dict[int, int]] = {}
    for job in running:
        shape = job.spec.shape
        assert len(set(job.gpu_ids)) == shape.gpus, f"job {job.label} has the wrong number of GPUs"
        for index in job.gpu_ids:
            expected.setdefault(index, {})[job.key] = shape.gpu_memory_mib if shape.shared else 0
    assert expected == state.machine.holders, "the holders' table does not match the running jobs"
    for index, holders in state.machine.holders.items():
        if 0 in holders.values():
            assert len(holders) == 1, f"GPU {index} is given to {len(holders)} jobs, one of them alone"
        elif index in state.machine.gpus:
            assert sum(holders.values()) <= state.machine.gpus[index].memory_mib * SLACK, (
                f"GPU {index} is overbooked"
            )
    machine = state.machine
    tables, has_strays = (machine.idle, machine.idle_sorted, machine.open), machine.has_strays
    machine.recount()
    assert has_strays or not machine.has_strays, "an unusable GPU counts as usable"
    assert tables == (machine.idle, machine.idle_sorted, machine.open), "the tables of free GPUs are stale"


def _check_counts(state: State) -> None:
    running = _holding_resources(state)
    assert state.machine.free_cpus == state.machine.cpus - sum(job.spec.shape.cpus for job in running), (
        "CPU slots are off"
    )
    memory = sum(job.spec.memory_mib for job in running)
    assert state.machine.free_memory_mib == state.machine.memory_mib - memory, "host memory is off"
    running = _running(state)
    assert state.running == {job.key: job for job in running}, "the table of running jobs is off"
    for resource in ("gpus", "cpus", "memory_mib"):
        occupied: Counter[int] = Counter()
        for job in running:
            occupied[job.uid] += getattr(job.spec.shape, resource)
        counted = {uid: getattr(use, resource) for uid, use in state.accounting.fair_share.uses.items()}
        assert +occupied == +Counter(counted), f"shares of {resource} are off"
    away = [state.jobs[key] for key in state.remote.jobs if not state.jobs[key].is_array]
    assert state.accounting.group_running == Counter(job.spec.group for job in running + away), (
        "group counts are off"
    )
    sweeps = Counter(job.spec.group for job in state.jobs.values() if job.spec.group > 0)
    assert state.groups.active == sweeps, "counts of active jobs of groups are off"
    known = {*sweeps, *(-job.number for job in state.jobs.values() if job.is_array)}
    assert state.groups.tallies.keys() <= known, "a group that is over has a tally"
    assert state.groups.judged.keys() <= known | {0}, "a group that is over has judged rules"
    judged = state.groups.judged.get(0, {})
    assert all(key in state.jobs for key in judged), "a job that is over has judged rules"


def _check_dependencies(state: State) -> None:
    waits = {id(wait): wait for wait in state.dependencies.waits.values()}
    for opened in state.open.values():
        waits |= {id(wait): wait for _, wait in opened.waits.values() if wait is not None}
    forwards = {(name, parent) for name, wait in waits.items() for parent in wait.parents}
    backwards = {(name, parent) for parent, found in state.dependencies.children.items() for name in found}
    assert forwards == backwards, "the two tables of dependencies disagree"
    for wait in waits.values():
        assert wait.jobs or wait.is_open, "no job waits, and the wait is kept"
        assert all(state.dependencies.waits.get(key) is wait for key in wait.jobs), "a wait counts a stranger"
    members = sum(len(wait.jobs) for wait in waits.values())
    assert members == len(state.dependencies.waits), "a wait does not know who waits"
    tasks = {key for key in state.dependencies.children if task_of(key) is not None}
    awaited = {(array, key) for array, keys in state.dependencies.awaited.items() for key in keys}
    assert awaited == {(job_key(number_of(key)), key) for key in tasks}, "awaited tasks are off"
    starts = {key for wait in waits.values() for key, needs in wait.others.items() if needs & START}
    assert starts <= state.dependencies.awaited_starts, "awaited starts are off"
    assert not any(map(state.jobs.has_begun, starts)), "a job waits for a start that has happened"
    for child, wait in state.dependencies.waits.items():
        if child in state.arriving:
            continue
        assert not wait.is_over, f"{state.jobs[child].label} waits for nothing"
        if wait.broken is not None:
            assert state.jobs[child].spec.no_auto_cancel, f"{state.jobs[child].label} waits in vain"


def _check_names(state: State) -> None:
    assert list(state.jobs.order) == sorted(state.jobs), "the order of keys is off"
    names = NameIndex()
    for job in state.jobs.values():
        if job.task is None and not state.arriving.get(job.key):
            names.add(job.uid, job.spec.shared_name, job.key)
    assert names == state.jobs.names, "the index of names is off"


def _check_arrays(state: State) -> None:
    for key, tasks in state.jobs.tasks.items():
        assert tasks, "an empty set of tasks is kept"
        array = state.jobs.get(key)
        assert array is not None and array.progress is not None, f"tasks of {key} have no array"
        assert array.progress.active == len(tasks), f"array {array.label} miscounts its tasks"
    for job in state.jobs.values():
        if job.progress is not None:
            assert job.progress.active == len(state.jobs.tasks.get(job.key, ())), (
                f"array {job.label} miscounts"
            )
            assert job.progress.pending or job.progress.active, f"array {job.label} is over and not final"
        if job.task is not None:
            assert job.key in state.jobs.tasks[job_key(job.number)], f"task {job.label} is not in its array"


def _check_buckets(state: State) -> None:
    groups = Counter(group.bucket.key for group in state.ready.groups.values())
    for key, bucket in state.ready.buckets.items():
        assert bucket.groups == groups[key], f"bucket {key} miscounts its groups"


def _check_start_reservations(state: State) -> None:
    """No start reservation binds fewer jobs than a full round would let it bind: due ones count as such."""
    kept = {one.key: one.place for one in state.start_reservations.entries}
    for one in reservations_due(state, state.start_reservations.at) if state.ready else ():
        assert kept.get(one.key, one.place) <= one.place, (
            f"the start reservation of job {state.jobs[one.key].label} binds from {kept[one.key]} on, "
            f"and should from {one.place} on"
        )


def _check_nothing_startable(state: State) -> None:
    at = state.start_reservations.at
    for group in state.ready.groups.values():
        head = group.head()
        assert head is not None, "an empty group is kept"
        job = state.jobs[head]
        gpu_ids = placement(state, job, at)
        assert gpu_ids is None or not may_backfill(state, job, gpu_ids), (
            f"job {job.label} could start and does not"
        )
